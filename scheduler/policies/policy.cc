#include "scheduler/policies/policy.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/config/option_value.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {
namespace {

using params::kOne;

// hylo compresses nothing below its gate, and from there on rates fall with the size.
constexpr std::int64_t kHyloBase = 4096;
constexpr std::int64_t kHyloLeast = kOne / 20;
constexpr std::int64_t kMostFilters = 65536;  // filter numbers have 16 bits on the wire
constexpr int kFewRanks = 4;
constexpr std::int64_t kWarmPart = kOne / 4;                  // the start of Deep Gradient Compression
constexpr std::int64_t kLargestGate = std::int64_t{1} << 40;  // bytes

std::int64_t rounded_part(std::int64_t count, std::int64_t part) {
  return static_cast<std::int64_t>((Wide{count} * part + kOne / 2) / kOne);
}

std::int64_t part_up(std::int64_t count, std::int64_t part) {
  return static_cast<std::int64_t>((Wide{count} * part + kOne - 1) / kOne);
}

// Returns the square root, rounded down. Requires a value from 0 to below 2^62.
std::int64_t square_root(std::int64_t value) {
  std::int64_t root = 0;
  for (std::int64_t bit = std::int64_t{1} << 31; bit > 0; bit >>= 1) {
    if (const std::int64_t next = root + bit; next <= value / std::max<std::int64_t>(next, 1)) {
      root = next;
    }
  }
  return root;
}

std::int64_t value_dtype(const Method& method) {
  const std::string_view name = method.choice("values");
  return static_cast<std::int64_t>(name == "f16" ? DType::kF16 : name == "bf16" ? DType::kBF16 : DType::kF32);
}

struct Encoding {
  CodecId codec = CodecId::kNone;
  std::vector<std::int64_t> params;
  bool sparse = false;
  std::string what;  // "keeps 5 of 512"
};

Encoding group_topk(const Method& method) {
  const std::int64_t group = method.value("group");
  const std::int64_t keep = std::max<std::int64_t>(rounded_part(group, method.value("rate")), 1);
  return {CodecId::kGroupTopk,
          {method.value("ef"), group, keep, value_dtype(method), method.value("momentum"), method.value("nesterov")},
          true,
          "keeps " + std::to_string(keep) + " of " + std::to_string(group)};
}

Encoding threshold_sparse(const Method& method, std::int64_t values) {
  const std::int64_t density = method.value("density");
  return {CodecId::kThresholdSparse,
          {method.value("ef"), density, method.value("reestimate"), values, method.value("momentum"),
           method.value("nesterov")},
          true,
          "keeps " + part_text(density)};
}

Encoding kernel_sparse(std::int64_t feedback, std::int64_t rate, std::int64_t values, const TensorInfo& tensor) {
  const std::int64_t filters = std::max<std::int64_t>(part_up(tensor.rows(), rate), 1);
  return {CodecId::kKernelSparse,
          {feedback, 0, filters, values},
          true,
          std::to_string(filters) + " of " + std::to_string(tensor.rows()) + " filters"};
}

Encoding block_topk(const Method& method, const TensorInfo& tensor) {
  const std::int64_t blocks = divide_up(tensor.numel(), method.value("block"));
  const std::int64_t keep = std::max<std::int64_t>(rounded_part(blocks, method.value("rate")), 1);
  return {CodecId::kBlockTopk,
          {method.value("ef"), method.value("block"), keep},
          true,
          "keeps " + std::to_string(keep) + " of " + std::to_string(blocks) + " blocks"};
}

// Replaces each {key} by the value of the key.
std::string sent_text(const Method& method) {
  std::string text(method.info->sent);
  for (const KeyInfo& key : method.info->own_keys()) {
    const std::string place = "{" + std::string(key.name) + "}";
    if (const std::size_t at = text.find(place); at != std::string::npos) {
      text.replace(at, place.size(), value_text(key, method.value(key.name)));
    }
  }
  return text;
}

// Most codecs have the keys of their row as parameters.
Encoding encoding_of_row(const Method& method) {
  SRT_CHECK(method.info->codec.has_value());
  return {*method.info->codec, plain_params(method), false, sent_text(method)};
}

// Returns the encoding that a compressing method chooses for a tensor that passed its gates.
Encoding encoding_of(const Method& method, const TensorInfo& tensor) {
  const auto f32 = static_cast<std::int64_t>(DType::kF32);
  switch (method.info->id) {
    case MethodId::kGroupTopk:
      return group_topk(method);
    case MethodId::kThresholdSparse:
      return threshold_sparse(method, value_dtype(method));
    case MethodId::kKernelSparse:
      return kernel_sparse(method.value("ef"), method.value("rate"), value_dtype(method), tensor);
    case MethodId::kBlockTopk:
      return block_topk(method, tensor);
    case MethodId::kHylo:
      return tensor.dims.size() >= 3 && tensor.rows() <= kMostFilters
                 ? kernel_sparse(method.value("ef"), hylo_rate(tensor.numel(), method.value("rho")), f32, tensor)
                 : Encoding{
                       CodecId::kTwobit, {method.value("ef"), method.value("factor"), 0}, false, "2 bits an element"};
    case MethodId::kAlgc:
      return threshold_sparse(method, f32);
    default:
      return encoding_of_row(method);
  }
}

// Returns the reason for which a compressing method skips the tensor; empty if it does not.
std::string gate(const Method& method, const TensorInfo& tensor, const Circumstances& at) {
  if (tensor.dtype != DType::kF32) {
    return std::string(dtype_name(tensor.dtype)) + ", not float32";
  }
  const auto least = static_cast<std::size_t>(method.value("ndim"));
  if (tensor.dims.size() < least) {
    return "of " + std::to_string(tensor.dims.size()) + " dimensions, fewer than " + std::to_string(least);
  }
  std::int64_t size = method.value("min");
  if (method.info->id == MethodId::kAlgc && at.link) {
    // The link transfers so many bytes in the latency of a message anyway.
    const Wide even = Wide{at.link->latency_ns} * at.link->bytes_per_second / kNsPerSecond;
    size = static_cast<std::int64_t>(std::max<Wide>(size, std::min<Wide>(even, kLargestGate)));
  }
  if (tensor.held_bytes() < size || tensor.numel() == 0) {
    return "smaller than " + format_bytes(std::max<std::int64_t>(size, 1));
  }
  return {};
}

bool sends_floats(const Encoding& encoding) {
  return encoding.codec != CodecId::kKernelSparse ||
         encoding.params[params::kValue] == static_cast<std::int64_t>(DType::kF32);
}

// Returns the reductions that the method may choose for the codec, the most general one first.
std::vector<ReductionKind> reductions_of(const Method& method, const Encoding& encoding, const CodecFacts& facts) {
  // The purpose of block_topk is the same choice of blocks on all ranks.
  if (encoding.codec == CodecId::kBlockTopk && facts.supports(encoding.codec, ReductionKind::kShared)) {
    return {ReductionKind::kShared};
  }
  std::vector<ReductionKind> reductions;
  for (const ReductionKind reduction :
       {ReductionKind::kLowRank, ReductionKind::kGather, ReductionKind::kScatter, ReductionKind::kShared}) {
    // In the published hylo every rank chooses kernels for itself, and halves are not summed.
    const bool other =
        reduction == ReductionKind::kShared && (method.info->id == MethodId::kHylo || !sends_floats(encoding));
    if (facts.supports(encoding.codec, reduction) && !other) {
      reductions.push_back(reduction);
    }
  }
  return reductions;
}

// The payload of the first step of warm-up, halved until it takes no more bytes than a dense one.
Result<std::int64_t> warm_first(const Encoding& encoding, ReductionKind reduction, const TensorInfo& tensor,
                                const CodecFacts& facts) {
  const bool grouped = encoding.codec == CodecId::kGroupTopk;
  const std::size_t part = grouped ? params::kKeep : params::kDensity;
  Decision fuller{encoding.codec, reduction, encoding.params};
  std::int64_t first = part_up(grouped ? encoding.params[params::kGroup] : kOne, kWarmPart);
  while (first > encoding.params[part]) {
    fuller.params[part] = first;
    SRT_ASSIGN(const PlannedTensor planned, facts.planned(tensor, fuller));
    if (planned.wire_bytes <= tensor.held_bytes()) {
      break;
    }
    first /= 2;
  }
  return first;
}

// Adds the parameters of warm-up if the method asks for it and leaves room for it.
Status add_warm_up(const Method& method, Encoding& encoding, ReductionKind reduction, const TensorInfo& tensor,
                   const CodecFacts& facts) {
  const std::int64_t steps = method.has("warmup") ? method.value("warmup") : 0;
  if (steps == 0) {
    return {};
  }
  SRT_ASSIGN(const std::int64_t first, warm_first(encoding, reduction, tensor, facts));
  if (first > encoding.params[encoding.codec == CodecId::kGroupTopk ? params::kKeep : params::kDensity]) {
    encoding.params.insert(encoding.params.end(), {steps, first});
    encoding.what += " after " + std::to_string(steps) + " steps of warm-up";
  }
  return {};
}

Result<ReductionKind> reduction_for(const Method& method, const Encoding& encoding, const TensorInfo& tensor,
                                    const Circumstances& at, const CodecFacts& facts) {
  if (const std::string_view asked = method.choice("wire"); asked != "auto") {
    // The `wire` key of a policy applies to those of its codecs that support it.
    const ReductionKind reduction = reduction_named(asked);
    const bool policy = method.info->id == MethodId::kHylo;
    if (!policy || facts.supports(encoding.codec, reduction)) {
      return reduction;
    }
  }
  const std::vector<ReductionKind> reductions = reductions_of(method, encoding, facts);
  if (reductions.empty()) {
    return Status(Code::kInvalidArgument,
                  "this build has no reduction for the payload of " + std::string(method.info->name),
                  {-1, tensor.name});
  }
  if (at.link && reductions == std::vector{ReductionKind::kGather, ReductionKind::kShared}) {
    SRT_ASSIGN(const PlannedTensor gathered, facts.planned(tensor, {encoding.codec, reductions[0], encoding.params}));
    SRT_ASSIGN(const PlannedTensor shared, facts.planned(tensor, {encoding.codec, reductions[1], encoding.params}));
    return exchange_ns({reductions[0], gathered.wire_bytes}, at.ranks, *at.link) <=
                   exchange_ns({reductions[1], shared.wire_bytes}, at.ranks, *at.link)
               ? reductions[0]
               : reductions[1];
  }
  if (!facts.supports(encoding.codec, ReductionKind::kGather) ||
      !facts.supports(encoding.codec, ReductionKind::kScatter)) {
    return reductions.front();
  }
  SRT_ASSIGN(const PlannedTensor scattered,
             facts.planned(tensor, {encoding.codec, ReductionKind::kScatter, encoding.params}));
  return gather_or_scatter(scattered.wire_bytes, encoding.sparse, at);
}

// A stream has one controller.
Status check_policies(const Spec& spec) {
  const auto names = [&](MethodId id) {
    return std::ranges::any_of(spec.rules, [&](const Rule& rule) { return rule.method.info->id == id; });
  };
  return names(MethodId::kAuto) && names(MethodId::kImportance)
             ? invalid_argument("compression rules name both auto and importance; a stream follows one of them")
             : Status();
}

Status no_match(const Rule& rule, std::size_t number, const std::vector<TensorInfo>& tensors) {
  std::string text = "compression rule " + std::to_string(number) + " '" + rule.text + "' matches none of " +
                     std::to_string(tensors.size()) + " tensors";
  if (!tensors.empty()) {
    text += "; the first are named";
    for (std::size_t i = 0; i < std::min<std::size_t>(tensors.size(), 3); ++i) {
      text += (i == 0 ? " '" : ", '") + tensors[i].name + "'";
    }
  }
  return invalid_argument(text + ". Correct the pattern, or remove the rule");
}

}  // namespace

std::int64_t TensorInfo::numel() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

Method at_rate(const Method& importance, std::int64_t rate) {
  // The values of `wire` of importance are the first ones of group_topk.
  Method method = method_like(*find_method("group_topk"), importance);
  method.set("rate", rate);
  return method;
}

Method at_density(const Method& algc, std::int64_t density) {
  Method method = algc;
  const std::int64_t least = algc.value("density");
  method.set("density", std::clamp(density, least, std::max(least, algc.value("most"))));
  return method;
}

bool follows_density(const Method& method) {
  return method.info->id == MethodId::kAlgc && method.value("momentum") == 0 &&
         method.value("most") > method.value("density");
}

bool follows_link(const Method& method, const TensorInfo& tensor, const CodecFacts& facts) {
  const MethodId id = method.info->id;
  const bool decides = method.has("wire") && id != MethodId::kAuto && id != MethodId::kImportance;
  // A known link only raises gates.
  if (!decides || !gate(method, tensor, {}).empty()) {
    return false;
  }
  return follows_density(method) ||
         (method.choice("wire") == "auto" && reductions_of(method, encoding_of(method, tensor), facts).size() > 1);
}

std::int64_t hylo_rate(std::int64_t numel, std::int64_t rho) {
  const std::int64_t squared = rho * rho * kHyloBase / std::max<std::int64_t>(numel, 1);
  return std::clamp(square_root(squared), std::min(kHyloLeast, rho), rho);
}

ReductionKind gather_or_scatter(std::int64_t payload_bytes, bool sparse, const Circumstances& at) {
  if (at.ranks <= 2) {
    return ReductionKind::kGather;
  }
  if (!at.link) {
    return sparse && at.ranks <= kFewRanks ? ReductionKind::kGather : ReductionKind::kScatter;
  }
  return payload_bytes <= most_in_one_exchange(at.ranks, 1, *at.link) ? ReductionKind::kGather
                                                                      : ReductionKind::kScatter;
}

Result<PlannedTensor> stay_dense(const TensorInfo& tensor, std::string reason, const CodecFacts& facts) {
  SRT_ASSIGN(PlannedTensor planned, facts.planned(tensor, {}));
  planned.reason = std::move(reason);
  return planned;
}

Result<PlannedTensor> decide_tensor(const Method& method, const TensorInfo& tensor, const Circumstances& at,
                                    const CodecFacts& facts) {
  const MethodId id = method.info->id;
  if (method.info->dense()) {
    SRT_ASSIGN(PlannedTensor planned, facts.planned(tensor, {*method.info->codec, ReductionKind::kDense, {}}));
    planned.reason = "by name";
    return planned;
  }
  const std::string name(method.info->name);
  if (id == MethodId::kAuto) {
    return stay_dense(tensor, "auto: dense until the link is measured", facts);
  }
  if (id == MethodId::kImportance) {
    return decide_tensor(at_rate(method, std::min(method.value("start"), method.value("most"))), tensor, at, facts);
  }
  if (std::string why = gate(method, tensor, at); !why.empty()) {
    return stay_dense(tensor, name + ": stays dense, " + why, facts);
  }
  Encoding encoding = encoding_of(method, tensor);
  SRT_ASSIGN(const ReductionKind reduction, reduction_for(method, encoding, tensor, at, facts));
  SRT_TRY(add_warm_up(method, encoding, reduction, tensor, facts));
  SRT_ASSIGN(PlannedTensor planned, facts.planned(tensor, {encoding.codec, reduction, std::move(encoding.params)}));
  if (method.choice("wire") == "auto" && planned.wire_bytes >= tensor.held_bytes()) {
    return stay_dense(tensor, name + ": stays dense, which is not larger", facts);
  }
  planned.reason = name + ": " + encoding.what + ", by " + std::string(reduction_name(reduction));
  return planned;
}

Result<std::vector<PlannedTensor>> decide(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                          const Circumstances& at, const CodecFacts& facts) {
  std::vector<bool> matched(spec.rules.size(), spec.for_all);
  SRT_TRY(check_policies(spec));
  std::vector<PlannedTensor> choices;
  choices.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    const Rule* first = nullptr;
    for (std::size_t i = 0; i < spec.rules.size(); ++i) {
      if (glob_matches(spec.rules[i].glob, tensor.name)) {
        matched[i] = true;
        first = first == nullptr ? &spec.rules[i] : first;
      }
    }
    SRT_ASSIGN(PlannedTensor choice, first == nullptr ? stay_dense(tensor, "no rule matches", facts)
                                                      : decide_tensor(first->method, tensor, at, facts));
    choices.push_back(std::move(choice));
  }
  for (std::size_t i = 0; i < matched.size(); ++i) {
    if (!matched[i] && !tensors.empty()) {
      return no_match(spec.rules[i], i + 1, tensors);
    }
  }
  return choices;
}

}  // namespace sirtaki::scheduler
