#include "runtime/engine/reduction/wire_size.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "compression/codecs/catalog.h"
#include "compression/counted_codes.h"
#include "runtime/base/config/compression_methods.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::engine {
namespace {

Status bad_decision(const scheduler::TensorInfo& tensor, const std::string& why) {
  return {Code::kInvalidArgument, "tensor '" + tensor.name + "': " + why, {-1, tensor.name}};
}

compression::Shape shape_of(const std::vector<std::int64_t>& dims) {
  const std::int64_t numel = std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
  return {numel, dims.size() < 2 || numel == 0 ? 1 : dims.front()};
}

// Returns why the reduction does not support the codec with these parameters; empty: it does.
std::string refusal(const compression::PayloadCodec& codec, const scheduler::Decision& decision,
                    const compression::Shape& shape, int ranks) {
  const int most = reduction_most_ranks(decision.reduction);
  if (ranks > most) {
    return "by reduction " + std::string(reduction_name(decision.reduction)) + " supports at most " +
           std::to_string(most) + " ranks, not " + std::to_string(ranks) + "; choose wire=gather";
  }
  if (decision.reduction == ReductionKind::kShared && codec.selection(decision.params, shape)->value() != DType::kF32) {
    return "by reduction shared sums values as float32; choose values=f32, or wire=gather";
  }
  return {};
}

// Returns the payload of the whole tensor for the reduction.
scheduler::Payload payload_of(const compression::PayloadCodec& codec, const scheduler::Decision& decision,
                              const compression::Shape& shape) {
  scheduler::Payload payload;
  payload.held_bytes = shape.numel * static_cast<std::int64_t>(sizeof(float));
  if (decision.reduction == ReductionKind::kShared) {
    const auto selection = codec.selection(decision.params, shape);
    payload.bytes = static_cast<std::int64_t>(selection->value_bytes());
    payload.agreed_bytes = static_cast<std::int64_t>(selection->norm_bytes());
    return payload;
  }
  std::vector<std::int64_t> sent = decision.params;
  if (decision.reduction == ReductionKind::kRing) {
    // The ring sends float32 sums, whatever value type the codec would send.
    sent.at(params::kValue) = static_cast<std::int64_t>(DType::kF32);
  }
  payload.bytes = static_cast<std::int64_t>(codec.payload_bytes(sent, shape, shape.numel));
  if (decision.reduction == ReductionKind::kCounts) {
    payload.agreed_bytes = static_cast<std::int64_t>(compression::CountedCodes::exponent_bytes(shape.numel));
    payload.bytes -= payload.agreed_bytes;
  }
  return payload;
}

Status check_keeps(const scheduler::Decision& decision, int ranks) {
  const std::vector<std::int64_t>& keeps = decision.keeps;
  if (keeps.empty()) {
    return {};
  }
  const bool allowed = decision.codec == CodecId::kGroupTopk && decision.reduction == ReductionKind::kGather &&
                       keeps.size() == static_cast<std::size_t>(ranks) && std::ranges::min(keeps) >= 1 &&
                       std::ranges::max(keeps) == decision.params[params::kKeep];
  return allowed ? Status() : invalid_argument("only group_topk with gather lets ranks send different fractions");
}

std::string number_of(const scheduler::Decision& decision) {
  return std::to_string(static_cast<int>(decision.codec));
}

}  // namespace

compression::Shape shape_of(const StreamTensor& tensor) {
  return shape_of(tensor.dims);
}

Result<scheduler::PlannedTensor> planned_tensor(const scheduler::TensorInfo& tensor, scheduler::Decision decision,
                                                int ranks, int exchanging) {
  exchanging = exchanging > 0 ? exchanging : ranks;
  const compression::Shape shape = shape_of(tensor.dims);
  scheduler::PlannedTensor planned{tensor.name, shape.numel, tensor.dtype, std::move(decision)};
  const scheduler::Decision& decided = planned.decision;
  if (!decided.format().compressed()) {
    const compression::Codec* codec = compression::find_codec(decided.codec);
    if (codec == nullptr) {
      return bad_decision(tensor, "codec " + number_of(decided) + " does not support a dense allreduce");
    }
    planned.wire_bytes = shape.numel * static_cast<std::int64_t>(dtype_size(codec->wire_dtype(tensor.dtype)));
    return planned;
  }
  const compression::PayloadCodec* codec = compression::find_payload_codec(decided.codec);
  if (codec == nullptr) {
    return bad_decision(tensor, "codec " + number_of(decided) + " is not known; known are " +
                                    compression::codec_names() + ". Likely cause: another build of this library");
  }
  if (tensor.dtype != DType::kF32) {
    return bad_decision(tensor, "codec '" + std::string(codec->name()) + "' supports float32, not " +
                                    std::string(dtype_name(tensor.dtype)));
  }
  if (!codec->supports(decided.reduction)) {
    return bad_decision(tensor, "codec '" + std::string(codec->name()) + "' does not support reduction " +
                                    std::string(reduction_name(decided.reduction)));
  }
  if (const Status checked = codec->check(decided.params, shape); !checked.ok()) {
    return bad_decision(tensor, std::string(checked.text()));
  }
  if (const Status checked = check_keeps(decided, ranks); !checked.ok()) {
    return bad_decision(tensor, std::string(checked.text()));
  }
  if (const std::string why = refusal(*codec, decided, shape, exchanging); !why.empty()) {
    return bad_decision(tensor, "codec '" + std::string(codec->name()) + "' " + why);
  }
  planned.stripe = std::max<std::int64_t>(codec->stripe(decided.params, shape, ranks), 1);
  planned.wire_bytes = scheduler::dense_equivalent(decided.reduction, payload_of(*codec, decided, shape), exchanging);
  return planned;
}

DType wire_dtype(const scheduler::WireFormat& format, DType dtype) {
  return compression::codec(format.codec).wire_dtype(dtype);
}

DType wire_dtype(const scheduler::Partition& partition) {
  return wire_dtype(partition.format, partition.dtype);
}

}  // namespace sirtaki::engine
