#include "runtime/engine/stream/plan/stream_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "compression/codecs/catalog.h"
#include "runtime/base/config/compression_methods.h"
#include "runtime/base/config/compression_spec.h"
#include "runtime/engine/reduction/wire_size.h"

namespace sirtaki::engine {
namespace {

std::string_view codec_name(CodecId id) {
  if (const compression::Codec* codec = compression::find_codec(id)) {
    return codec->name();
  }
  const compression::PayloadCodec* codec = compression::find_payload_codec(id);
  return codec == nullptr ? "unknown" : codec->name();
}

// Returns the part of the elements that are sent; 1 for codecs that send all of them with fewer bits.
double density_of(const scheduler::PlannedTensor& tensor, std::int64_t rows) {
  const std::vector<std::int64_t>& p = tensor.decision.params;
  const auto numel = static_cast<double>(std::max<std::int64_t>(tensor.numel, 1));
  const auto at = [&](std::size_t place) { return static_cast<double>(p.at(place)); };
  switch (tensor.decision.codec) {
    case CodecId::kGroupTopk:
      return at(params::kKeep) / at(params::kGroup);
    case CodecId::kThresholdSparse:
      return at(params::kDensity) / static_cast<double>(params::kOne);
    case CodecId::kKernelSparse:
      return std::min(at(params::kFilters) / static_cast<double>(std::max<std::int64_t>(rows, 1)), 1.0);
    case CodecId::kBlockTopk:
      return std::min(at(params::kFilters) * at(params::kBlock) / numel, 1.0);
    default:
      return 1.0;
  }
}

std::string context_of(const StreamSpec& spec) {
  return "stream '" + spec.name + "'";
}

}  // namespace

int exchanging_ranks(const net::Collectives& net) {
  const net::HostGroups* groups = net.host_groups();
  return groups == nullptr ? net.size() : groups->hosts.count();
}

CatalogFacts::CatalogFacts(const net::Collectives& net) : CatalogFacts(net.size(), exchanging_ranks(net)) {
  if (const net::HostGroups* groups = net.host_groups()) {
    ranks_per_host_ = groups->hosts.shares();
  }
}

bool CatalogFacts::supports(CodecId codec, ReductionKind reduction) const {
  if (reduction == ReductionKind::kDense) {
    return compression::find_codec(codec) != nullptr;
  }
  const compression::PayloadCodec* found = compression::find_payload_codec(codec);
  return found != nullptr && found->supports(reduction);
}

Result<scheduler::PlannedTensor> CatalogFacts::planned(const scheduler::TensorInfo& tensor,
                                                       scheduler::Decision decision) const {
  return planned_tensor(tensor, std::move(decision), ranks_, exchanging_);
}

std::string compression_text(const Config& config) {
  const std::string& codec = config.compression.codec;
  if (config.compression.rules.empty()) {
    return codec;
  }
  return config.compression.rules + ";" + (codec.find("=>") == std::string::npos ? "*=>" : "") + codec;
}

std::vector<scheduler::TensorInfo> tensor_infos(const StreamSpec& spec) {
  std::vector<scheduler::TensorInfo> infos;
  infos.reserve(spec.tensors.size());
  for (const StreamTensor& tensor : spec.tensors) {
    infos.push_back({tensor.name, tensor.dims, tensor.dtype});
  }
  return infos;
}

void fill_order(StreamSpec& spec) {
  if (spec.order.empty()) {
    spec.order.resize(spec.tensors.size());
    std::iota(spec.order.rbegin(), spec.order.rend(), 0);
  }
}

Status read_compression(StreamSpec& spec) {
  auto how = parse_spec(spec.codec);
  if (!how) {
    return how.status().with_context(context_of(spec));
  }
  spec.how = std::move(*how);
  return {};
}

Result<std::shared_ptr<const scheduler::Plan>> first_plan(const StreamSpec& spec,
                                                          const scheduler::LayoutOptions& layout,
                                                          const CatalogFacts& facts) {
  auto tensors = scheduler::decide(spec.how, tensor_infos(spec), {.ranks = facts.exchanging()}, facts);
  if (!tensors) {
    return tensors.status().with_context(context_of(spec));
  }
  return scheduler::Plan::build(std::move(*tensors), spec.order, layout, 1);
}

std::unique_ptr<scheduler::CodecController> controller_for(const StreamSpec& spec,
                                                           const scheduler::PlannerOptions& planner,
                                                           std::shared_ptr<const CatalogFacts> facts) {
  return scheduler::make_controller(spec.how, tensor_infos(spec), planner, std::move(facts));
}

Result<std::shared_ptr<const scheduler::Plan>> plan_by_link(scheduler::CodecController& controller,
                                                            const scheduler::StepProfile& link, const StreamSpec& spec,
                                                            std::shared_ptr<const scheduler::Plan> unmeasured,
                                                            const scheduler::PlannerOptions& planner) {
  if (auto tensors = controller.first(link, unmeasured->tensors())) {
    return scheduler::plan_in_order(*tensors, spec.order, link, planner, 1);
  }
  return unmeasured;
}

void write_tensors(JsonWriter& json, const StreamSpec& spec, const scheduler::Plan& plan,
                   std::span<const double> residual_norms) {
  json.begin_array();
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const scheduler::PlannedTensor& tensor = plan.tensors()[i];
    const auto held = static_cast<double>(tensor.numel) * static_cast<double>(dtype_size(tensor.dtype));
    const std::int64_t wire = tensor.wire_bytes_of(tensor.numel);
    json.begin_object();
    json.key("name").value(tensor.name).key("numel").value(tensor.numel).key("dtype").value(dtype_name(tensor.dtype));
    json.key("codec").value(codec_name(tensor.decision.codec));
    json.key("recipe").value(reduction_name(tensor.decision.reduction)).key("params").begin_array();
    for (const std::int64_t value : tensor.decision.params) {
      json.value(value);
    }
    json.end_array().key("density").value(density_of(tensor, shape_of(spec.tensors[i]).rows));
    const auto momentum = static_cast<double>(corrected_momentum(tensor.decision.codec, tensor.decision.params));
    json.key("momentum").value(momentum / static_cast<double>(params::kOne));
    json.key("held_bytes").value(static_cast<std::int64_t>(held)).key("wire_bytes").value(wire);
    json.key("ratio").value(held / static_cast<double>(std::max<std::int64_t>(wire, 1)));
    json.key("reason").value(tensor.reason);
    if (!residual_norms.empty()) {
      json.key("owed_norm").value(residual_norms[i]);
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace sirtaki::engine
