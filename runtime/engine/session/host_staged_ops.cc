#include "runtime/engine/session/host_staged_ops.h"

#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::engine {

Result<device::Mark> HostStagedOps::mark(const OpSpec& spec) const {
  return spec.input.device.type == DeviceType::kCpu ? device::Mark() : stage_->mark({spec.cuda_stream});
}

void HostStagedOps::submit(OpSpec spec, Result<device::Mark> written, OpDone done) {
  const bool on_device = spec.input.device.type != DeviceType::kCpu;
  const bool waits = spec.name.empty() && !unnamed_.empty();
  if (!on_device && !waits) {
    engine_.submit(std::move(spec), std::move(done));
    return;
  }
  const auto op = std::make_shared<Op>();
  op->spec = std::move(spec);
  op->done = std::move(done);
  op->program = {op->spec.cuda_stream};
  op->here = !on_device;
  if (op->spec.name.empty()) {
    unnamed_.push_back(op);
  }
  if (on_device) {
    ++fetching_;
    fetch(op, std::move(written));
  }
}

// All ranks return the same, since it reads only fields that they compare when they agree on an operation; but for the
// output of an allgather or alltoall, which they exchange with the sizes, and for a process set that this rank knows to
// use host memory: the others bring the tensors there, too, when they learn of it.
bool HostStagedOps::may_go_direct(const OpSpec& spec) const {
  if (plane_->host_only(spec.ranks)) {
    return false;
  }
  if (moves_blocks(spec.kind)) {
    return spec.output.data != nullptr;
  }
  const bool narrow = spec.input.dtype == DType::kU16 || spec.input.dtype == DType::kI16;
  const bool scaled = spec.prescale != 1.0 || spec.postscale != 1.0;
  const bool sums = spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReduceScatter;
  return spec.kind == OpKind::kBroadcast || (sums && spec.reduce_op != ReduceOp::kAdasum && !narrow && !scaled);
}

void HostStagedOps::fetch(const OpPtr& op, Result<device::Mark> written) {
  SRT_CHECK(stage_ != nullptr);
  op->direct = may_go_direct(op->spec);
  auto then = [this, op](const Status& status) { on_fetched(op, status); };
  if (op->direct) {
    stage_->fetch({}, nullptr, std::move(written), std::move(then));
  } else {
    bring(op, op->spec, std::move(written), std::move(then));
  }
}

void HostStagedOps::bring(const OpPtr& op, OpSpec& spec, Result<device::Mark> written, Done then) {
  const std::byte* const from = spec.input.data;
  const Status placed = place(*op, spec);
  // Only the root of a broadcast reads its input. The other ranks still wait for `written`: queued work of the program
  // must not overwrite the result.
  const bool sends = spec.kind != OpKind::kBroadcast || spec.root == rank_;
  stage_->fetch(
      sends && placed.ok() ? op->input.bytes() : Bytes(), from, std::move(written),
      [op, placed, then = std::move(then)](const Status& status) mutable { then(placed.ok() ? status : placed); });
}

Status HostStagedOps::place(Op& op, OpSpec& spec) {
  SRT_ASSIGN(op.input, stage_->take(spec.input.size_bytes()));
  spec.input.data = op.input.bytes().data();
  op.target = spec.output;
  if (op.target.data == nullptr) {
    return {};
  }
  if (op.target.numel == spec.input.numel && !moves_blocks(spec.kind)) {
    spec.output.data = spec.input.data;
    return {};
  }
  SRT_ASSIGN(op.output, stage_->take(op.target.size_bytes()));
  spec.output.data = op.output.bytes().data();
  return {};
}

class HostStagedOps::Way final : public OpTransport {
 public:
  Way(HostStagedOps& ops, OpPtr op) : ops_(ops), op_(std::move(op)) {}

  void choose(OpSpec& spec, Chosen then) override {
    waiting_ = std::make_shared<Chosen>(std::move(then));
    ops_.plane_->when_decided(spec.ranks,
                              [this, &spec, weak = std::weak_ptr(waiting_)](const DeviceTransport::Answer& answer) {
                                if (const auto waiting = weak.lock()) {
                                  waiting_.reset();
                                  decided(spec, answer, std::move(*waiting));
                                }
                              });
  }
  void choose_host(OpSpec& spec, Chosen then) override { prepare(spec, nullptr, std::move(then)); }
  void give_up(const Status& cause) override {
    if (waiting_) {
      ops_.plane_->loop().post([then = std::move(*waiting_), cause]() mutable { then(cause); });
      waiting_.reset();  // an answer that comes before the task finds nobody
    }
  }

 private:
  void decided(OpSpec& spec, const DeviceTransport::Answer& answer, Chosen then) {
    if (!answer) {
      then(answer.status());
    } else if (*answer == nullptr) {
      prepare(spec, nullptr, std::move(then));
    } else {
      ops_.plane_->nccl_bytes().add(spec.input.size_bytes());
      prepare(spec, *answer, std::move(then));
    }
  }
  // The work that the program queued earlier is complete: the unstaged fetch has waited for it.
  void prepare(OpSpec& spec, net::Collectives* net, Chosen then) {
    auto done = [net, then = std::move(then)](const Status& status) mutable {
      then(status.ok() ? Result<net::Collectives*>(net) : Result<net::Collectives*>(status));
    };
    if (net == nullptr) {
      ops_.bring(op_, spec, device::Mark(), std::move(done));
      return;
    }
    const bool apart = spec.kind == OpKind::kBroadcast && spec.input.data != spec.output.data;
    const std::byte* const from = std::exchange(spec.input.data, apart ? spec.output.data : spec.input.data);
    if (apart && spec.root == ops_.rank_) {
      ops_.stage_->fetch(spec.output.bytes(), from, device::Mark(), std::move(done));
    } else {
      done({});
    }
  }

  HostStagedOps& ops_;
  const OpPtr op_;
  std::shared_ptr<Chosen> waiting_;  // while the ranks have not decided
};

void HostStagedOps::on_fetched(const OpPtr& op, const Status& status) {
  --fetching_;
  op->here = true;
  op->fetched = status;
  if (!op->spec.name.empty()) {
    hand_over(op);
  }
  while (!unnamed_.empty() && unnamed_.front()->here) {
    const OpPtr first = std::move(unnamed_.front());
    unnamed_.pop_front();
    hand_over(first);
  }
  if (fetching_ == 0) {
    for (Task& then : std::exchange(waiting_, {})) {
      then();
    }
  }
}

void HostStagedOps::hand_over(const OpPtr& op) {
  if (!op->fetched.ok()) {
    op->done(op->fetched, {});
    return;
  }
  OpSpec spec = std::move(op->spec);
  if (op->direct) {
    spec.transport = std::make_shared<Way>(*this, op);
  }
  engine_.submit(std::move(spec), [this, op](const Status& status, OpResult result) {
    const Status end = status.ok() ? put_back(*op) : status;
    op->done(end, std::move(result));
  });
}

Status HostStagedOps::put_back(Op& op) {
  if (op.target.data == nullptr || op.target.numel == 0) {
    return {};
  }
  const bool own = !op.output.bytes().empty();
  SRT_TRY(stage_->put_back(std::move(own ? op.output : op.input), op.target.data));
  return stage_->order_before(op.program);
}

void HostStagedOps::after_submitted(Task then) {
  if (fetching_ == 0) {
    then();
  } else {
    waiting_.push_back(std::move(then));
  }
}

}  // namespace sirtaki::engine
