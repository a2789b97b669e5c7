// TurnQueue: pieces of work on memory, one a turn of the loop, the most urgent first.
//
// For: operations over shared memory, whose copies and sums would otherwise keep the loop from its sockets, and urgent
// operations behind bulk. Owned by a collectives backend; its loop's thread. Destroying it drops what is queued.
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

  // Of equal priority what frees memory goes before what fills more: little is on the way at a time, and in the caches.
  enum class Effect : std::uint8_t { kFrees, kFills };

  // `piece` runs with ok, later. Smaller priorities first, then by effect, then first in, first out.
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
