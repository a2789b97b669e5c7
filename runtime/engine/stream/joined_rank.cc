#include "runtime/engine/stream/joined_rank.h"

#include <utility>

namespace sirtaki::engine {

void JoinedRank::allow_start() {
  if (std::exchange(blocked_, false) && joined_ && timer_ == TimerId()) {
    next();
  }
}

void JoinedRank::begin() {
  if (!joined_) {
    joined_ = true;
    next();
  }
}

void JoinedRank::end_in(std::uint32_t attempt, Task done) {
  until_ = attempt;
  done_ = std::move(done);
}

// Uses a turn of the loop of its own: inside a callback of the step before, the memory of that step is still in use.
void JoinedRank::next() {
  timer_ = loop_.after(Duration(0), [this] {
    timer_ = {};
    run();
  });
}

void JoinedRank::run() {
  if (blocked_) {
    return;
  }
  if (!host_.reached(until_)) {
    host_.step();
    return;
  }
  joined_ = false;
  until_ = kNever;
  host_.ended();
  if (done_) {
    std::exchange(done_, {})();
  }
}

}  // namespace sirtaki::engine
