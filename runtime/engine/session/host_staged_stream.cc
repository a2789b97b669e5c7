#include "runtime/engine/session/host_staged_stream.h"

#include <algorithm>
#include <utility>

namespace sirtaki::engine {
namespace {

// Keeps run() from nesting: calls that a running call makes come after it.
class Running {
 public:
  explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { flag_ = false; }

 private:
  bool& flag_;
};

}  // namespace

void HostStagedStream::handed_over(device::Stream program) {
  if (std::ranges::find(programs_, program) == programs_.end()) {
    programs_.push_back(program);
  }
}

Status HostStagedStream::let_pass(const std::vector<device::Stream>& programs) {
  for (const device::Stream program : programs) {
    SRT_TRY(stage_.order_before(program));
    if (const Status passed = plane_ == nullptr ? Status() : plane_->order_before(program); !passed.ok()) {
      return stage_.fail(passed);
    }
  }
  return {};
}

void HostStagedStream::ready(int index, Source source, Ready hand_over) {
  const auto call = std::make_shared<Call>();
  calls_.push_back(call);
  if (plane_ != nullptr && in_place_()) {
    wait_in_place(call, index, std::move(source), std::move(hand_over));
  } else {
    fetch(call, index, std::move(source), std::move(hand_over));
  }
}

void HostStagedStream::wait_in_place(const std::shared_ptr<Call>& call, int index, Source source, Ready hand_over) {
  call->due = false;
  call->turn = [this, tensor = source.tensor, program = source.program, hand_over](const Status& given_up) {
    if (given_up.ok() && hand_over(tensor)) {
      handed_over(program);
    }
  };
  Result<device::Mark> written = std::move(source.written);
  source.written = device::Mark();  // a later fetch() begins after the mark has passed
  // Holds the call weakly, since the call owns this function.
  call->fetch = [this, weak = std::weak_ptr(call), index, source = std::move(source),
                 hand_over = std::move(hand_over)]() mutable {
    fetch(weak.lock(), index, std::move(source), std::move(hand_over));
  };
  stage_.fetch({}, nullptr, std::move(written),
               [self = shared_from_this(), call](const Status& status) { self->fetched(call, status); });
}

void HostStagedStream::fetch(const std::shared_ptr<Call>& call, int index, Source source, Ready hand_over) {
  call->due = false;
  auto memory = stage_.take(source.tensor.size_bytes());
  if (!memory) {
    // The device is lost, which breaks the job; the engine reports that to the stream.
    call->turn = {};
    call->due = true;
    run();
    return;
  }
  const auto block = std::make_shared<device::PinnedBlock>(std::move(*memory));
  TensorView host = source.tensor;
  host.data = block->bytes().data();
  const Bytes to = source.reads ? block->bytes() : Bytes();
  if (!source.reads) {
    std::ranges::fill(block->bytes(), std::byte{0});
  }
  call->turn = [this, index, target = source.tensor.data, program = source.program, block, host,
                hand_over = std::move(hand_over)](const Status& given_up) {
    if (given_up.ok() && hand_over(host)) {
      fetched_[index] = {target, std::move(*block)};
      handed_over(program);
    }
  };
  stage_.fetch(to, source.tensor.data, std::move(source.written),
               [self = shared_from_this(), call, block](const Status& status) { self->fetched(call, status); });
}

void HostStagedStream::fetched(const std::shared_ptr<Call>& call, const Status& status) {
  if (!status.ok()) {
    call->turn = {};
  }
  call->due = true;
  call->kept.reset();
  run();
}

void HostStagedStream::call(Turn turn) {
  auto call = std::make_shared<Call>();
  call->turn = std::move(turn);
  calls_.push_back(std::move(call));
  run();
}

void HostStagedStream::run() {
  if (running_) {
    return;
  }
  const auto self = shared_from_this();  // a call may close the stream
  const Running running(running_);
  while (!calls_.empty() && calls_.front()->due) {
    if (Task fetch = std::exchange(calls_.front()->fetch, {}); fetch && calls_.front()->turn && !in_place_()) {
      // A step was given up meanwhile, so the tensor belongs to another step, which uses host memory.
      fetch();
      continue;
    }
    const auto call = std::move(calls_.front());
    calls_.pop_front();
    if (call->turn) {
      call->turn({});
    }
  }
}

Task HostStagedStream::give_up(const Status& cause, Task released) {
  // Runs `released` when the last owner is gone: calls with a fetch in flight, and the returned function.
  std::shared_ptr<void> end(nullptr, [released = std::move(released)](void* /*nothing*/) mutable { released(); });
  for (const auto& call : std::exchange(calls_, {})) {
    if (!call->due) {
      call->kept = end;
    }
    if (Turn turn = std::exchange(call->turn, {})) {
      turn(cause);
    }
  }
  returned_ = {};
  return [self = shared_from_this(), end, held = std::exchange(fetched_, {}),
          programs = std::exchange(programs_, {})]() mutable {
    static_cast<void>(self->let_pass(programs));
    held.clear();
    end.reset();
  };
}

void HostStagedStream::result(int index) {
  if (const auto place = fetched_.find(index); place != fetched_.end()) {
    returned_.update(stage_.put_back(std::move(place->second.memory), place->second.target));
    fetched_.erase(place);
  }
}

Done HostStagedStream::at_end(Done done) {
  return [self = shared_from_this(), done = std::move(done)](Status status) mutable {
    status.update(std::exchange(self->returned_, {}));
    status.update(self->let_pass(std::exchange(self->programs_, {})));
    self->fetched_.clear();
    done(std::move(status));
  };
}

Done HostStagedStream::at_end_of_tensors(Done done) {
  return [self = shared_from_this(), done = std::move(done)](Status status) mutable {
    status.update(self->returned_);
    status.update(self->let_pass(self->programs_));
    done(std::move(status));
  };
}

}  // namespace sirtaki::engine
