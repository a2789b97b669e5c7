#include "runtime/engine/stream/unused_param_sync.h"

#include <span>

#include "runtime/engine/common/tags.h"

namespace sirtaki::engine {

net::CollectiveArgs flags_exchange(OpTag tag, std::vector<std::uint8_t>& flags) {
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.tag = tag;
  args.dtype = DType::kU8;
  args.op = ReduceOp::kMax;
  args.out = std::as_writable_bytes(std::span(flags));
  args.in = args.out;
  return args;
}

UnusedParamSync::UnusedParamSync(StreamId id, std::size_t tensors, net::Collectives& net)
    : id_(id), tensors_(tensors), net_(net), in_flight_(std::make_shared<std::vector<Exchange>>()) {}

void UnusedParamSync::completed(std::uint32_t attempt, std::uint64_t step, bool none) {
  if (!none || (last_ && last_->first != attempt)) {
    none_from_.reset();
  }
  if (none && !none_from_) {
    none_from_ = step;
  }
  last_ = std::pair(attempt, step);
}

void UnusedParamSync::on_flags(const control::StreamFlags& message) {
  asked_ = true;
  from_ = std::pair(message.attempt, message.step);
  if (!last_ || last_->first != message.attempt) {
    return;
  }
  for (std::uint64_t step = message.step; step <= last_->second; ++step) {
    const bool none = none_from_ && step >= *none_from_;
    auto flags = std::make_shared<std::vector<std::uint8_t>>(tensors_, static_cast<std::uint8_t>(none ? 0 : 1));
    const OpTag tag = stream_tag(id_, message.attempt, kFlagsPosition, step);
    in_flight_->push_back({message.attempt, step, tag});
    net_.start(flags_exchange(tag, *flags), [tag, flags, in_flight = in_flight_](const Status& /*status*/) {
      std::erase_if(*in_flight, [tag](const Exchange& exchange) { return exchange.tag == tag; });
    });
  }
}

void UnusedParamSync::on_aborted(const control::StreamAborted& message) {
  const std::uint32_t given_up = message.attempt - 1;
  if (last_ && last_->first == given_up && last_->second >= message.step) {
    last_ = message.step == 0 ? std::nullopt : std::optional(std::pair(given_up, message.step - 1));
  }
  for (const Exchange& exchange : std::vector(*in_flight_)) {
    if (exchange.attempt == given_up && exchange.step >= message.step) {
      net_.cancel(exchange.tag, message.status);
    }
  }
}

}  // namespace sirtaki::engine
