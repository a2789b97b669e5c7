#include "runtime/engine/device/event_poller.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::engine {

void EventPoller::when(Result<device::Mark> mark, Done then) {
  SRT_IN_LOOP(loop_);
  Status why = ended_;
  if (why.ok() && !mark) {
    why = stage_.fail(mark.status());
  }
  if (!why.ok()) {
    loop_.post([then = std::move(then), why = std::move(why)]() mutable { then(why); });
    return;
  }
  waiters_.push_back({std::move(*mark), std::move(then), loop_.now() + options_.deadline});
  pause_ = options_.first_poll;
  poll_later();
}

void EventPoller::poll_later() {
  if (timer_ != TimerId() || waiters_.empty()) {
    return;
  }
  timer_ = loop_.after(pause_, [this] {
    timer_ = {};
    poll();
  });
  pause_ = std::min(2 * pause_, options_.last_poll);
}

// A failure ends the stage, too, but the stage does not know these waiters, so they end here.
void EventPoller::poll() {
  if (const Status status = poll_all(); !status.ok()) {
    timer_ = loop_.after(Duration(0), [this, why = stage_.fail(status)] {
      timer_ = {};
      end(why);
    });
  } else {
    poll_later();
  }
}

Status EventPoller::poll_all() {
  while (!waiters_.empty()) {
    SRT_ASSIGN(const bool done, stage_.device().done(waiters_.front().mark.event()));
    if (!done) {
      break;
    }
    Waiter over = std::move(waiters_.front());
    waiters_.pop_front();
    pause_ = options_.first_poll;
    over.then({});
  }
  if (!waiters_.empty() && loop_.now() >= waiters_.front().deadline) {
    return {Code::kTimeout, "the GPU has not finished copies and kernels of the runtime in time"};
  }
  return {};
}

void EventPoller::end(const Status& cause) {
  SRT_IN_LOOP(loop_);
  ended_.update(cause);
  loop_.cancel(timer_);
  timer_ = {};
  for (Waiter& one : std::exchange(waiters_, {})) {
    one.then(ended_);
  }
}

}  // namespace sirtaki::engine
