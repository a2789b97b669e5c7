// TurnQueue: pieces of work on memory, one per turn of the loop, the most urgent first.
//
// The queue serves operations over shared memory. Without it, their copies and sums would keep the loop from its
// sockets, and urgent operations would wait behind bulk. Owned by a collectives backend and used on its loop. The
// destructor drops queued work.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"

namespace sirtaki::net {

class TurnQueue {
 public:
  explicit TurnQueue(Loop& loop) : state_(std::make_shared<State>(loop)) {}

  // At equal priority, work that frees memory runs before work that fills it, so that little is in flight and it stays
  // in the caches.
  enum class Effect : std::uint8_t { kFrees, kFills };

  // Queues `piece`, which runs later, with ok. Order: smaller priority first, then effect, then first in, first out.
  void add(std::int32_t priority, Effect effect, Done piece) {
    state_->pieces.emplace(std::tuple(priority, effect, state_->added++), std::move(piece));
    schedule(state_);
  }

 private:
  struct State {
    explicit State(Loop& on) : loop(on) {}
    Loop& loop;
    std::map<std::tuple<std::int32_t, Effect, std::uint64_t>, Done> pieces;
    std::uint64_t added = 0;
    bool scheduled = false;
  };

  static void schedule(const std::shared_ptr<State>& state) {
    if (state->scheduled || state->pieces.empty()) {
      return;
    }
    state->scheduled = true;
    state->loop.post([weak = std::weak_ptr(state)] {
      const auto self = weak.lock();
      if (!self) {
        return;
      }
      self->scheduled = false;
      auto first = self->pieces.extract(self->pieces.begin());
      first.mapped()({});
      schedule(self);
    });
  }

  std::shared_ptr<State> state_;
};

}  // namespace sirtaki::net
