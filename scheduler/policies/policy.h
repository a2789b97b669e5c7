// Policies: decide for each tensor of a stream by a compression spec, with a reason.
//
// Used for the first plan of a stream, and by the controllers that change it (codec_controller.h). Pure: no I/O, no
// thread, no clock; integers only, so all ranks decide alike. Knows codecs by their numbers only.
// Sources of the methods: hylo, kernels and two bits by layer (Hylo: Hybrid Layer-Based Optimization to Reduce
// Communication in Distributed Deep Learning); algc, a gate and a density for each layer (Wang and Zhu, ALGC, 2025);
// group_topk (the grouped selection of a patent; its momentum correction: Lin et al., Deep Gradient Compression, 2018).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/config/compression_spec.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::scheduler {

struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> dims;
  DType dtype = DType::kF32;

  std::int64_t numel() const;
  // Returns the number of filters of a convolution, or of rows of a matrix.
  std::int64_t rows() const { return dims.size() < 2 ? 1 : dims.front(); }
  std::int64_t held_bytes() const { return numel() * static_cast<std::int64_t>(dtype_size(dtype)); }
};

// Facts about codecs. The engine implements it by the catalog. Outlives its users.
class CodecFacts {
 public:
  CodecFacts() = default;
  CodecFacts(const CodecFacts&) = delete;
  CodecFacts& operator=(const CodecFacts&) = delete;
  virtual ~CodecFacts() = default;

  virtual bool supports(CodecId codec, ReductionKind reduction) const = 0;
  // Returns the tensor as part of a plan, with stripe and bytes on the network. kInvalidArgument: the decision cannot
  // be run.
  virtual Result<PlannedTensor> planned(const TensorInfo& tensor, Decision decision) const = 0;
};

struct Circumstances {
  int ranks = 1;  // ranks that exchange payloads
  std::optional<LinkFacts> link = {};
};

// A gather is faster than two halves as long as its further bytes take less time than a latency: m < a B P / ((P - 1)
// (P - 2)). Without a link, returns kGather for up to two ranks, and for up to four with `sparse` payloads.
ReductionKind gather_or_scatter(std::int64_t payload_bytes, bool sparse, const Circumstances& at);

// Returns the tensors with decisions and reasons. kInvalidArgument: a rule of several that matches no tensor, or a
// method that cannot run on a tensor that was given by name and passed its gates.
Result<std::vector<PlannedTensor>> decide(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                          const Circumstances& at, const CodecFacts& facts);

// Decides for one tensor by one method.
Result<PlannedTensor> decide_tensor(const Method& method, const TensorInfo& tensor, const Circumstances& at,
                                    const CodecFacts& facts);

// Returns the tensor without compression.
Result<PlannedTensor> stay_dense(const TensorInfo& tensor, std::string reason, const CodecFacts& facts);

// Returns group_topk at the rate, with the keys of a method of the policy importance.
Method at_rate(const Method& importance, std::int64_t rate);

// Returns algc with that density, clamped to `density` and `most` of the method.
Method at_density(const Method& algc, std::int64_t density);

// Returns true if the densities of layers follow the link; otherwise they are fixed. Momentum correction excludes it,
// because every change would drop the momentum.
bool follows_density(const Method& method);

// Returns true if the link may change the result of decide_tensor(): the reduction, or the density of algc.
bool follows_link(const Method& method, const TensorInfo& tensor, const CodecFacts& facts);

// Returns the rate of filters of a convolution with `numel` elements, lower for larger ones: clamp(rho sqrt(4096 / n),
// 5 %, rho).
std::int64_t hylo_rate(std::int64_t numel, std::int64_t rho);

}  // namespace sirtaki::scheduler
