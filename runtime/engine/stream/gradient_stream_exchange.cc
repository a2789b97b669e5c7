// Changes of the plan: the exchange that some steps carry, and the adoption at a step border.
#include <limits>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {

void GradientStream::adopt_plan() {
  plan_ = agreement_->plan();
  dispatcher_.reset();
  const Status adopted = dispatcher_.adopt(plan_);
  SRT_CHECK(adopted.ok());
  // Partitions after that of the tensor that is ready last cannot start before all tensors are ready, anyway.
  commit_position_ = agreement_->last_tensor() < 0 ? 0 : plan_->partitions_of(agreement_->last_tensor()).front();
}

// The exchange has the lowest priority, because only the end of the step waits for it.
void GradientStream::start_exchange() {
  if (state_.exchanged || phase_ != Phase::kOpen || deps_.net.size() == 1) {
    return;
  }
  std::vector<std::int64_t> mine = agreement_->exchange(step_, !joined_.joined());
  if (mine.empty()) {
    return;
  }
  state_.exchanged = std::make_shared<std::vector<std::int64_t>>(std::move(mine));
  state_.exchange_done = false;
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.tag = stream_tag(id_, attempt_, kExchangePosition, step_);
  args.dtype = DType::kI64;
  args.op = ReduceOp::kMax;
  args.priority = std::numeric_limits<std::int32_t>::max();
  args.out = std::as_writable_bytes(std::span(*state_.exchanged));
  args.in = args.out;
  ++in_flight_count_;
  deps_.net.start(std::move(args), [this, attempt = attempt_, held = state_.exchanged](const Status& status) {
    --in_flight_count_;
    if (attempt == attempt_ && phase_ == Phase::kOpen) {
      state_.exchange_done = status.ok();
      if (!status.ok()) {
        give_up(status);
      }
    }
    answer();
  });
}

}  // namespace sirtaki::engine
