#include "runtime/engine/staged_ops.h"

#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::engine {

Result<device::Mark> StagedOps::mark(const OpSpec& spec) const {
  return spec.input.device.type == DeviceType::kCpu ? device::Mark() : stage_->mark({spec.cuda_stream});
}

void StagedOps::submit(OpSpec spec, Result<device::Mark> written, OpDone done) {
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

void StagedOps::fetch(const OpPtr& op, Result<device::Mark> written) {
  SRT_CHECK(stage_ != nullptr);
  const std::byte* const from = op->spec.input.data;
  const Status placed = place(*op);
  // Others than the root of a broadcast send nothing, but what the program has queued is done before the result comes.
  const bool sends = op->spec.kind != OpKind::kBroadcast || op->spec.root == rank_;
  stage_->fetch(sends && placed ? op->input.bytes() : Bytes(), from, std::move(written),
                [this, op, placed](const Status& status) { on_fetched(op, placed ? status : placed); });
}

// Memory of the host for all that is on the device.
Status StagedOps::place(Op& op) {
  SRT_ASSIGN(op.input, stage_->take(op.spec.input.size_bytes()));
  op.spec.input.data = op.input.bytes().data();
  op.target = op.spec.output;
  if (op.target.data == nullptr) {
    return {};
  }
  if (op.target.numel == op.spec.input.numel) {
    op.spec.output.data = op.spec.input.data;
    return {};
  }
  SRT_ASSIGN(op.output, stage_->take(op.target.size_bytes()));
  op.spec.output.data = op.output.bytes().data();
  return {};
}

void StagedOps::on_fetched(const OpPtr& op, const Status& status) {
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

void StagedOps::hand_over(const OpPtr& op) {
  if (!op->fetched) {
    op->done(op->fetched, {});
    return;
  }
  OpSpec spec = std::move(op->spec);
  engine_.submit(std::move(spec), [this, op](const Status& status, OpResult result) {
    const Status end = status ? put_back(*op) : status;
    op->done(end, std::move(result));
  });
}

Status StagedOps::put_back(Op& op) {
  if (op.target.data == nullptr || op.target.numel == 0) {
    return {};
  }
  const bool own = !op.output.bytes().empty();
  return stage_->put_back(std::move(own ? op.output : op.input), op.target.data, op.program);
}

void StagedOps::after_submitted(Task then) {
  if (fetching_ == 0) {
    then();
  } else {
    waiting_.push_back(std::move(then));
  }
}

}  // namespace sirtaki::engine
