#include "scheduler/policies/loss_ladder.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/base/check.h"

namespace sirtaki::scheduler {
namespace {

using params::kOne;

constexpr std::int64_t kUnatsPerNat = 1'000'000;

constexpr std::int64_t kUnknown = 1'000 * kUnatsPerNat;  // beyond every budget

// Costs by optimizer: SGD with momentum; those that divide by the magnitude of gradients, as Adam and AdamW do; others,
// of which only the cost of 8 bits is known to be small. A cost is the mean over the seeds of the worst of the measured
// trainings. Muon loses 0.014 nats by four bits, but 0.025 in the worst of three seeds, so this level is left to those
// who allow as much. The cost of a density is that of the default of the key `rate`.
struct Row {
  std::string_view codec;
  std::string_view key = {};  // the key that `value` sets
  std::int64_t value = 0;     // a multiple of the key `rate` for a density
  std::array<std::int64_t, 3> unats = {};
};

constexpr Row kRows[] = {
    {.codec = "int8", .unats = {0, 1'000, 1'000}},
    {.codec = "int4", .unats = {1'000, 1'000, 25'000}},
    {.codec = "powersgd", .key = "rank", .value = 8, .unats = {17'000, 119'000, kUnknown}},
    {.codec = "powersgd", .key = "rank", .value = 4, .unats = {47'000, 171'000, kUnknown}},
    {.codec = "powersgd", .key = "rank", .value = 2, .unats = {98'000, 206'000, kUnknown}},
    {.codec = "threshold_sparse", .key = "density", .value = 1, .unats = {63'000, 207'000, kUnknown}},
};

LossLevel level_of(const Row& row, const Method& policy, std::int64_t cost) {
  LossLevel level{std::string(row.codec), method_like(*find_method(row.codec), policy), cost};
  if (row.key == "rank") {
    level.method.set(row.key, row.value);
    level.name += " of rank " + std::to_string(row.value);
  } else if (row.key == "density") {
    const std::int64_t density = std::min(row.value * policy.value("rate"), kOne);
    level.method.set(row.key, density);
    level.name += " " + part_text(density);
  }
  // The policy knows gather and scatter; of these, a codec takes the ones that it has.
  const std::string_view wire = policy.choice("wire");
  const std::string_view choices = level.method.info->keys[key_index(level.method.info->keys, "wire")].choices;
  if (("|" + std::string(choices) + "|").find("|" + std::string(wire) + "|") == std::string::npos) {
    level.method.set("wire", 0);
  }
  return level;
}

}  // namespace

std::vector<LossLevel> loss_ladder(const Method& policy) {
  const bool sparse = policy.value("sparse") != 0;
  const std::int64_t budget = policy.value("loss_budget") / (kDecimalOne / kUnatsPerNat);
  std::vector<LossLevel> levels = {{"dense", method_of(*find_method("none")), 0}};
  if (policy.value("fp16") != 0) {
    levels.push_back({"fp16", method_of(*find_method("fp16")), 0});
  }
  for (const Row& row : kRows) {
    const std::int64_t cost = row.unats.at(static_cast<std::size_t>(policy.value("optimizer")));
    if (cost <= budget && (sparse || row.key != "density")) {
      levels.push_back(level_of(row, policy, cost));
    }
  }
  std::ranges::stable_sort(levels, {}, &LossLevel::cost_unats);
  return levels;
}

}  // namespace sirtaki::scheduler
