// Codecs as policies see them, for the scheduler's tests: payloads of the usual sizes, without a codec behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "scheduler/plan/wire_cost.h"
#include "scheduler/policies/policy.h"

namespace sirtaki::scheduler {

class PlainFacts final : public CodecFacts {
 public:
  explicit PlainFacts(int ranks) : ranks_(ranks) {}

  bool supports(CodecId codec, ReductionKind reduction) const override {
    switch (codec) {
      case CodecId::kNone:
      case CodecId::kFp16:
      case CodecId::kBf16:
        return reduction == ReductionKind::kDense;
      case CodecId::kThresholdSparse:
        return reduction == ReductionKind::kGather;
      case CodecId::kKernelSparse:
      case CodecId::kBlockTopk:
        return reduction == ReductionKind::kGather || reduction == ReductionKind::kShared;
      case CodecId::kPowerSgd:
        return reduction == ReductionKind::kLowRank;
      default:
        return reduction == ReductionKind::kGather || reduction == ReductionKind::kScatter;
    }
  }

  Result<PlannedTensor> planned(const TensorInfo& tensor, Decision decision) const override {
    if (!supports(decision.codec, decision.reduction)) {
      return invalid_argument("tensor '" + tensor.name + "': the codec has no such reduction");
    }
    PlannedTensor planned{tensor.name, tensor.numel(), tensor.dtype, std::move(decision)};
    const bool whole = planned.decision.codec == CodecId::kThresholdSparse ||
                       planned.decision.codec == CodecId::kKernelSparse || planned.decision.codec == CodecId::kPowerSgd;
    planned.stripe = !planned.decision.format().compressed() ? 1
                     : whole                                 ? std::max<std::int64_t>(planned.numel, 1)
                                                             : 4096;
    planned.wire_bytes =
        dense_equivalent(planned.decision.reduction, {payload(tensor, planned.decision), tensor.held_bytes()}, ranks_);
    return planned;
  }

 private:
  static std::int64_t payload(const TensorInfo& tensor, const Decision& decision) {
    const std::int64_t n = tensor.numel();
    const auto& p = decision.params;
    switch (decision.codec) {
      case CodecId::kNone:
        return tensor.held_bytes();
      case CodecId::kFp16:
      case CodecId::kBf16:
        return tensor.dtype == DType::kF32 ? 2 * n : tensor.held_bytes();
      case CodecId::kInt4:
        return n / 2 + n / p[params::kBlock];
      case CodecId::kTwobit:
        return n / 4 + n / 2048;
      case CodecId::kOnebit:
        return n / 8 + n / p[params::kBlock];
      case CodecId::kGroupTopk:
        return n / p[params::kGroup] * p[params::kKeep] * 6;
      case CodecId::kThresholdSparse:
        return 4 + n * p[params::kDensity] / params::kOne * 8 * 5 / 4;
      case CodecId::kKernelSparse:
        return p[params::kFilters] * (2 + n / tensor.rows() * 4);
      case CodecId::kBlockTopk:
        return p[params::kFilters] * p[params::kBlock] * 4;
      case CodecId::kPowerSgd:
        return (tensor.rows() + n / tensor.rows()) * p[params::kRank] * 4;
      default:
        return n + n / p[params::kBlock];
    }
  }

  int ranks_;
};

}  // namespace sirtaki::scheduler
