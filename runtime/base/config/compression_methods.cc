#include "runtime/base/config/compression_methods.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki {
namespace {

using Keys = std::vector<KeyInfo>;
using params::kOne;

constexpr std::int64_t kLargestSize = std::int64_t{1} << 40;
constexpr std::int64_t kLargestBlock = 1 << 16;
// Size of 4,096 float32 elements. The fixed cost of a codec exceeds its saving for smaller tensors.
constexpr std::int64_t kSmallTensor = 4096 * 4;
constexpr std::int64_t kMostDims = 8;

constexpr std::int64_t percent(std::int64_t hundredths) {
  return (hundredths * kOne + 5'000) / 10'000;  // rounded like a parsed value
}

KeyInfo toggle(std::string_view name, bool initial) {
  return {name, KeyKind::kSwitch, initial ? 1 : 0, 0, 1};
}

// Number of keys that every compressing method has in front of its own keys (MethodInfo::own_keys()).
constexpr std::size_t kCommonKeys = 4;
Keys compressed(std::string_view wire, std::initializer_list<KeyInfo> own) {
  Keys keys = {toggle("ef", true),
               choice("wire", wire),
               {"min", KeyKind::kSize, kSmallTensor, 0, kLargestSize},
               {"ndim", KeyKind::kCount, 2, 0, kMostDims}};
  keys.insert(keys.end(), own);
  return keys;
}

Keys with_values(Keys keys) {
  keys.push_back(choice("values", "f32|f16|bf16"));
  return keys;
}

Keys with_momentum(Keys keys) {
  keys.push_back({"momentum", KeyKind::kPart, 0, 0, kOne - 1});
  keys.push_back(toggle("nesterov", false));
  return keys;
}

// Adds the key for the number of training steps with warm-up; 0 disables it.
Keys with_warm_up(Keys keys) {
  keys.push_back({"warmup", KeyKind::kCount, 0, 0, 1'000'000'000});
  return keys;
}

KeyInfo block(std::int64_t initial, std::int64_t least) {
  return {"block", KeyKind::kCount, initial, least, kLargestBlock};
}

constexpr std::string_view kGatherOrScatter = "auto|gather|scatter";

std::vector<MethodInfo> codecs() {
  return {
#define SRT_DENSE_CODEC(name, Id, number, help) {MethodId::k##Id, #name, help, {}, CodecId::k##Id},
#define SRT_CODEC(name, Id, number, help, sent, keys) {MethodId::k##Id, #name, help, keys, CodecId::k##Id, sent},
#include "runtime/base/codecs.inc"
#undef SRT_CODEC
#undef SRT_DENSE_CODEC
  };
}

std::vector<MethodInfo> policies() {
  return {
      {MethodId::kHylo, "hylo", "convolutions by kernel_sparse with rates by size, matrices by twobit",
       compressed("auto|gather|scatter|shared|counts", {{"rho", KeyKind::kPart, percent(2500), 1, kOne},
                                                        {"factor", KeyKind::kFactor, kOne, kOne / 64, 64 * kOne}})},
      {MethodId::kAlgc, "algc", "layers above a gate by threshold_sparse, each with a density of its own",
       with_warm_up(
           with_momentum(compressed("auto|gather|ring", {{"density", KeyKind::kPart, percent(100), 1, kOne},
                                                         {"most", KeyKind::kPart, percent(2500), 1, kOne},
                                                         {"reestimate", KeyKind::kCount, 32, 1, 1'000'000}})))},
      {MethodId::kImportance, "importance", "group_topk at the rate that the measured link and exposed time allow",
       with_momentum(
           with_values(compressed(kGatherOrScatter, {{"group", KeyKind::kCount, 512, 2, kLargestBlock},
                                                     choice("link", "budget|aimd"),
                                                     choice("split", "off|loss"),
                                                     {"start", KeyKind::kPart, percent(1000), 1, kOne},
                                                     {"least", KeyKind::kPart, percent(50), 1, kOne},
                                                     {"most", KeyKind::kPart, kOne, 1, kOne},
                                                     {"exposed", KeyKind::kPart, percent(500), 1, kOne},
                                                     {"down", KeyKind::kPart, percent(9500), kOne / 2, kOne - 1},
                                                     {"up", KeyKind::kPart, percent(10), 1, kOne}})))},
      {MethodId::kAuto, "auto",
       "as little compression as short steps on the measured link need, within a budget of training loss",
       with_warm_up(with_momentum(
           compressed(kGatherOrScatter, {toggle("fp16", false),
                                         toggle("sparse", true),
                                         choice("optimizer", kOptimizerKinds),
                                         {"gain", KeyKind::kPart, percent(500), 0, kOne / 2},
                                         {"loss_budget", KeyKind::kDecimal, kDecimalOne / 50, 0, 10 * kDecimalOne},
                                         {"rate", KeyKind::kPart, percent(200), 1, kOne}})))},
  };
}

struct ReductionRow {
  std::string_view name;
  ReductionKind reduction;
  int most_ranks;
};

constexpr std::array kReductions = {
#define SRT_REDUCTION(name, Id, number, most_ranks) ReductionRow{#name, ReductionKind::k##Id, most_ranks},
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION
};

}  // namespace

ReductionKind reduction_named(std::string_view name) {
  const auto* const found = std::ranges::find(kReductions, name, &ReductionRow::name);
  SRT_CHECK(found != kReductions.end());
  return found->reduction;
}

std::string_view reduction_name(ReductionKind reduction) {
  const auto* const found = std::ranges::find(kReductions, reduction, &ReductionRow::reduction);
  return found == kReductions.end() ? "unknown" : found->name;
}

int reduction_most_ranks(ReductionKind reduction) {
  const auto* const found = std::ranges::find(kReductions, reduction, &ReductionRow::reduction);
  SRT_CHECK(found != kReductions.end());
  return found->most_ranks > 0 ? found->most_ranks : std::numeric_limits<int>::max();
}

std::span<const KeyInfo> MethodInfo::own_keys() const {
  SRT_CHECK(keys.size() >= kCommonKeys);
  return std::span(keys).subspan(kCommonKeys);
}

const std::vector<MethodInfo>& methods() {
  static const std::vector<MethodInfo> kAll = [] {
    std::vector<MethodInfo> all = codecs();
    for (MethodInfo& policy : policies()) {
      all.push_back(std::move(policy));
    }
    return all;
  }();
  return kAll;
}

const MethodInfo* find_method(std::string_view name) {
  const auto found = std::ranges::find(methods(), name, &MethodInfo::name);
  return found == methods().end() ? nullptr : &*found;
}

Result<const MethodInfo*> method_named(std::string_view name) {
  if (const MethodInfo* found = find_method(name)) {
    return found;
  }
  std::vector<std::string_view> names;
  for (const MethodInfo& method : methods()) {
    names.push_back(method.name);
  }
  return unknown_name("unknown codec or policy '" + std::string(name) + "'", name, names, "known are");
}

}  // namespace sirtaki
