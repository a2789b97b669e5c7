// Policies: what a spec means for the tensors of a stream: a decision and a reason for each.
//
// For: the first plan of a stream, and the controllers that change it (controller.h). Sources of the methods: hylo,
// kernels and two bits by layer (Hylo: Hybrid Layer-Based Optimization to Reduce Communication in Distributed Deep
// Learning); algc, a gate and a density for each layer (Wang and Zhu, ALGC, 2025); group_topk (a patent's grouped
// selection; its momentum correction: Lin et al., Deep Gradient Compression, 2018).
// Pure: no I/O, no thread, no clock; integers only, so all ranks decide alike. Knows codecs by their numbers only.
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
  // Filters of a convolution, rows of a matrix.
  std::int64_t rows() const { return dims.size() < 2 ? 1 : dims.front(); }
  std::int64_t held_bytes() const { return numel() * static_cast<std::int64_t>(dtype_size(dtype)); }
};

// What policies ask of codecs. The engine answers from the catalog; outlives who asks.
class CodecFacts {
 public:
  CodecFacts() = default;
  CodecFacts(const CodecFacts&) = delete;
  CodecFacts& operator=(const CodecFacts&) = delete;
  virtual ~CodecFacts() = default;

  virtual bool supports(CodecId codec, ReductionKind reduction) const = 0;
  // The tensor in a plan: its stripe and its bytes on the network. kInvalidArgument: the decision cannot be run.
  virtual Result<PlannedTensor> planned(const TensorInfo& tensor, Decision decision) const = 0;
};

struct Circumstances {
  int ranks = 1;  // between which payloads travel
  std::optional<LinkFacts> link = {};
};

// Gathers are shorter than two halves as long as a payload fits into what the link has in transit:
// m < a B P / (P - 2). Without a link: up to two ranks, and of `sparse` payloads up to four.
ReductionKind gather_or_scatter(std::int64_t payload_bytes, bool sparse, const Circumstances& at);

// The tensors in a plan, with decisions and reasons. kInvalidArgument: a rule that matches no tensor (of some), or a
// method that cannot run on a tensor it was given by name and that its gates let through.
Result<std::vector<PlannedTensor>> decide(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                          const Circumstances& at, const CodecFacts& facts);

// One tensor by one method.
Result<PlannedTensor> decide_tensor(const Method& method, const TensorInfo& tensor, const Circumstances& at,
                                    const CodecFacts& facts);

// As the elements are held.
Result<PlannedTensor> stay_dense(const TensorInfo& tensor, std::string reason, const CodecFacts& facts);

// group_topk at the rate, with the keys of a method of the policy importance.
Method at_rate(const Method& importance, std::int64_t rate);

// algc with that density, from its own `density` to its `most`.
Method at_density(const Method& algc, std::int64_t density);

// Whether densities of the method's layers follow the link; those of others are what it says. Momentum correction
// would forget its momentum with every change.
bool follows_density(const Method& method);

// Whether what decide_tensor() makes of the tensor may depend on the link: its reduction, or of algc its density.
bool follows_link(const Method& method, const TensorInfo& tensor, const CodecFacts& facts);

// Rate of filters of a convolution with `numel` elements: the larger, the lower; clamp(rho sqrt(4096 / n), 5 %, rho).
std::int64_t hylo_rate(std::int64_t numel, std::int64_t rho);

}  // namespace sirtaki::scheduler
