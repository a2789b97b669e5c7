#include "runtime/engine/wire_size.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "compression/catalog.h"
#include "runtime/base/compression_methods.h"
#include "scheduler/wire_cost.h"

namespace sirtaki::engine {
namespace {

Status bad_decision(const scheduler::TensorInfo& tensor, const std::string& why) {
  return {Code::kInvalidArgument, "tensor '" + tensor.name + "': " + why, {-1, tensor.name}};
}

compression::Shape shape_of(const std::vector<std::int64_t>& dims) {
  const std::int64_t numel = std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
  return {numel, dims.size() < 2 || numel == 0 ? 1 : dims.front()};
}

// Whether there is a reduction for it (recipes/reduction.cc).
bool runs(Recipe recipe) {
  return recipe == Recipe::kGather || recipe == Recipe::kScatter || recipe == Recipe::kLowRank;
}

Status check_keeps(const scheduler::Decision& decision, int ranks) {
  const std::vector<std::int64_t>& keeps = decision.keeps;
  if (keeps.empty()) {
    return {};
  }
  const bool allowed = decision.codec == CodecId::kGroupTopk && decision.recipe == Recipe::kGather &&
                       keeps.size() == static_cast<std::size_t>(ranks) && std::ranges::min(keeps) >= 1 &&
                       std::ranges::max(keeps) == decision.params[params::kKeep];
  return allowed ? Status() : invalid_argument("ranks may send different parts by group_topk and gather only");
}

std::string number_of(const scheduler::Decision& decision) {
  return std::to_string(static_cast<int>(decision.codec));
}

}  // namespace

compression::Shape shape_of(const StreamTensor& tensor) {
  return shape_of(tensor.dims);
}

Result<scheduler::PlannedTensor> planned_tensor(const scheduler::TensorInfo& tensor, scheduler::Decision decision,
                                                int ranks) {
  const compression::Shape shape = shape_of(tensor.dims);
  scheduler::PlannedTensor planned{tensor.name, shape.numel, tensor.dtype, std::move(decision)};
  const scheduler::Decision& decided = planned.decision;
  if (!decided.way().lossy()) {
    const compression::Codec* codec = compression::find_codec(decided.codec);
    if (codec == nullptr) {
      return bad_decision(tensor, "codec " + number_of(decided) + " cannot be summed on the way");
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
    return bad_decision(tensor, "codec '" + std::string(codec->name()) + "' is for float32, not for " +
                                    std::string(dtype_name(tensor.dtype)));
  }
  if (!codec->supports(decided.recipe)) {
    return bad_decision(tensor, "codec '" + std::string(codec->name()) + "' does not travel by recipe " +
                                    std::string(recipe_name(decided.recipe)));
  }
  if (!runs(decided.recipe)) {
    return bad_decision(tensor, "codec '" + std::string(codec->name()) + "' by recipe " +
                                    std::string(recipe_name(decided.recipe)) + " cannot be run; choose another codec");
  }
  if (const Status checked = codec->check(decided.params, shape); !checked) {
    return bad_decision(tensor, std::string(checked.text()));
  }
  if (const Status checked = check_keeps(decided, ranks); !checked) {
    return bad_decision(tensor, std::string(checked.text()));
  }
  planned.stripe = std::max<std::int64_t>(codec->stripe(decided.params, shape, ranks), 1);
  const auto payload = static_cast<std::int64_t>(codec->payload_bytes(decided.params, shape, shape.numel));
  const std::int64_t held = shape.numel * static_cast<std::int64_t>(dtype_size(tensor.dtype));
  planned.wire_bytes = scheduler::dense_equivalent(decided.recipe, {payload, held}, ranks);
  return planned;
}

DType wire_dtype(const scheduler::Partition& partition) {
  return compression::codec(partition.way.codec).wire_dtype(partition.dtype);
}

}  // namespace sirtaki::engine
