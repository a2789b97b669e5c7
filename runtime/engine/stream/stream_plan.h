// How the tensors of a stream travel: from the text of options or of the program to the stream's first plan.
//
// For: Engine, and whoever asks how a tensor travels. Pure functions but for the catalog of codecs, which never
// changes.
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

// Ranks between which a byte travels: one a host where reductions go host by host.
int exchanging_ranks(const net::Collectives& net);

// The catalog's answers to policies.
class CatalogFacts final : public scheduler::CodecFacts {
 public:
  // `ranks` of the job; `exchanging`: those between which payloads travel (exchanging_ranks()), 0: all.
  explicit CatalogFacts(int ranks, int exchanging = 0)
      : ranks_(ranks), exchanging_(exchanging > 0 ? exchanging : ranks) {}
  explicit CatalogFacts(const net::Collectives& net) : CatalogFacts(net.size(), exchanging_ranks(net)) {}

  int exchanging() const { return exchanging_; }
  bool supports(CodecId codec, ReductionKind reduction) const override;
  Result<scheduler::PlannedTensor> planned(const scheduler::TensorInfo& tensor,
                                           scheduler::Decision decision) const override;

 private:
  int ranks_;
  int exchanging_;
};

// The options' text for streams that bring none: compression.rules before compression.codec.
std::string compression_text(const Config& config);

std::vector<scheduler::TensorInfo> tensor_infos(const StreamSpec& spec);

// Reads spec.codec, which is not empty, into spec.how. kInvalidArgument names the stream.
Status read_compression(StreamSpec& spec);

// The first plan of a stream whose text was read. kInvalidArgument names the stream.
Result<std::shared_ptr<const scheduler::Plan>> first_plan(const StreamSpec& spec,
                                                          const scheduler::LayoutOptions& layout,
                                                          const CatalogFacts& facts);

// Of a policy that changes how tensors travel while the stream runs; nullptr: spec.how names none.
std::unique_ptr<scheduler::CodecController> controller_for(const StreamSpec& spec,
                                                           const scheduler::PlannerOptions& planner,
                                                           std::shared_ptr<const CatalogFacts> facts);

// [{"name", "numel", "dtype", "codec", "reduction", "params", "density", "momentum", "held_bytes", "wire_bytes",
// "ratio", "reason", "owed_norm"}, ...] in the order of registration. density: part of the elements of which anything
// travels. momentum: the factor that the codec corrects. wire_bytes: those of an allreduce in which a rank sends as
// much. `owed_norms`: by tensor; empty: the key is left out.
void write_tensors(JsonWriter& json, const StreamSpec& spec, const scheduler::Plan& plan,
                   std::span<const double> owed_norms);

}  // namespace sirtaki::engine
