// Ranks without more data, and ranks that have left.
#include <utility>

#include "runtime/engine/engine.h"

namespace sirtaki::engine {

void Engine::join(MoveFunction<void(Result<Rank>)> done) {
  Status refused = failure_;
  refused.update(left_);
  if (join_) {
    refused.update(invalid_argument("join() is waited for already on rank " + std::to_string(deps_.net.rank())));
  }
  control::Joined message;
  for (const auto& [id, s] : streams_) {
    if (!s->spec().ranks.empty()) {
      refused.update({Code::kUnsupported,
                      "join() on rank " + std::to_string(deps_.net.rank()) + " with stream '" + s->spec().name +
                          "' of a process set: only streams of all ranks go on without a rank's data. Give the ranks "
                          "of the set the same number of steps, and delete its optimizer before join()",
                      {deps_.net.rank(), s->spec().name}});
      continue;
    }
    const auto place = s->place();
    if (!place) {
      refused.update({Code::kInvalidArgument,
                      "join() came in the middle of a step of stream '" + s->spec().name + "' on rank " +
                          std::to_string(deps_.net.rank()) +
                          ": gradients were computed and not used. Call the optimizer's step() first",
                      {deps_.net.rank(), s->spec().name}});
      continue;
    }
    message.places.push_back(*place);
  }
  if (!refused.ok()) {
    deps_.loop.post([done = std::move(done), refused]() mutable { done(refused); });
    return;
  }
  join_ = std::move(done);
  ops_.when_none_held([this, message = std::move(message)]() mutable {
    if (!join_) {
      return;  // the join has failed meanwhile
    }
    ops_.announce_in_flight();
    message.counts = ops_.submitted();
    deps_.control.send(std::move(message));
  });
}

void Engine::on(const control::StandIn& /*m*/) {
  if (!join_) {
    return;
  }
  for (const auto& [id, s] : streams_) {
    s->contribute_zeros();
  }
}

// The program goes on when every stream has reached the same place as on the other ranks.
void Engine::on(const control::AllJoined& m) {
  ops_.on_all_joined();
  begin_end_of_join(m.last);
  for (const control::StreamPlace& place : m.resets) {
    if (GradientStream* s = stream(place.stream)) {
      ++join_waits_;
      s->end_joined(place, [this] { on_stream_joined(); });
    }
  }
  on_stream_joined();
}

void Engine::on(const control::RanksLeft& m) {
  for (const Rank rank : m.ranks) {
    on_left(rank);
  }
}

// Ends a join that can never complete, although the job goes on.
void Engine::fail_join(const Status& cause) {
  if (!join_ || join_waits_ != 0) {
    return;
  }
  begin_end_of_join(cause);
  for (const auto& [id, s] : streams_) {
    ++join_waits_;
    s->give_up_joined(cause, [this] { on_stream_joined(); });
  }
  on_stream_joined();
}

void Engine::begin_end_of_join(Result<Rank> answer) {
  join_answer_ = std::move(answer);
  join_waits_ = 1;
}

void Engine::on_stream_joined() {
  if (--join_waits_ == 0) {
    end_join(join_answer_);
  }
}

void Engine::end_join(const Result<Rank>& answer) {
  if (join_) {
    std::exchange(join_, {})(answer);
  }
}

}  // namespace sirtaki::engine
