// First plan of a stream, and the wire format of its tensors, from the text of options or of the program.
//
// Used by Engine and GradientStream. Pure functions, apart from the catalog of codecs, which never changes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/engine/common/requests.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/plan/plan.h"
#include "scheduler/policies/codec_controller.h"
#include "scheduler/policies/policy.h"

namespace sirtaki::engine {

// Returns the number of ranks that exchange bytes over the network: one per host if hosts sum first.
int exchanging_ranks(const net::Collectives& net);

// Facts of the codec catalog, for policies.
class CatalogFacts final : public scheduler::CodecFacts {
 public:
  // `ranks`: ranks of the job. `exchanging`: those that exchange payloads (exchanging_ranks()); 0: all.
  explicit CatalogFacts(int ranks, int exchanging = 0)
      : ranks_(ranks), exchanging_(exchanging > 0 ? exchanging : ranks) {}
  explicit CatalogFacts(const net::Collectives& net);

  int exchanging() const { return exchanging_; }
  // Returns the largest number of ranks of a host if hosts sum first, else 1.
  int ranks_per_host() const { return ranks_per_host_; }
  bool supports(CodecId codec, ReductionKind reduction) const override;
  Result<scheduler::PlannedTensor> planned(const scheduler::TensorInfo& tensor,
                                           scheduler::Decision decision) const override;

 private:
  int ranks_;
  int exchanging_;
  int ranks_per_host_ = 1;
};

// Returns the text of the options for streams without one of their own: compression.rules before compression.codec.
std::string compression_text(const Config& config);

std::vector<scheduler::TensorInfo> tensor_infos(const StreamSpec& spec);

// Fills spec.order if it is empty: gradients come last tensor first.
void fill_order(StreamSpec& spec);

// Parses spec.codec, which must not be empty, into spec.how. Returns kInvalidArgument, with the name of the stream, if
// the text is malformed.
Status read_compression(StreamSpec& spec);

// Returns the first plan of a stream after read_compression(), or kInvalidArgument with the name of the stream.
Result<std::shared_ptr<const scheduler::Plan>> first_plan(const StreamSpec& spec,
                                                          const scheduler::LayoutOptions& layout,
                                                          const CatalogFacts& facts);

// Returns the controller of a policy that changes wire formats while the stream runs; nullptr: spec.how names none.
std::unique_ptr<scheduler::CodecController> controller_for(const StreamSpec& spec,
                                                           const scheduler::PlannerOptions& planner,
                                                           std::shared_ptr<const CatalogFacts> facts);

// Returns the plan of the first steps by a measurement of the link: `unmeasured` if the controller wants no other one.
Result<std::shared_ptr<const scheduler::Plan>> plan_by_link(scheduler::CodecController& controller,
                                                            const scheduler::StepProfile& link, const StreamSpec& spec,
                                                            std::shared_ptr<const scheduler::Plan> unmeasured,
                                                            const scheduler::PlannerOptions& planner);

// Writes [{"name", "numel", "dtype", "codec", "recipe", "params", "density", "momentum", "held_bytes", "wire_bytes",
// "ratio", "reason", "owed_norm"}, ...] in the order of registration. density: part of the elements that are sent.
// momentum: momentum that the codec corrects for. wire_bytes: bytes of the allreduce that costs the network as much.
// `residual_norms`: norm of the residual of each tensor; empty: the key "owed_norm" is left out.
void write_tensors(JsonWriter& json, const StreamSpec& spec, const scheduler::Plan& plan,
                   std::span<const double> residual_norms);

}  // namespace sirtaki::engine
