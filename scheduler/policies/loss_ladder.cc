#include "scheduler/policies/loss_ladder.h"

#include <algorithm>
#include <string_view>

#include "runtime/base/check.h"

namespace sirtaki::scheduler {
namespace {

using params::kOne;

constexpr std::int64_t kUnatsPerNat = 1'000'000;

// The cost of a density is that of the default of the key `rate`.
struct Row {
  std::string_view codec;
  std::string_view key = {};  // the key that `value` sets
  std::int64_t value = 0;     // a multiple of the key `rate` for a density
  bool mild = false;
  std::int64_t sgd_unats = 0;
  std::int64_t adaptive_unats = 0;
};

constexpr Row kRows[] = {
    {.codec = "int8", .mild = true, .sgd_unats = 0, .adaptive_unats = 1'000},
    {.codec = "powersgd", .key = "rank", .value = 8, .sgd_unats = 3'000, .adaptive_unats = 13'000},
    {.codec = "powersgd", .key = "rank", .value = 4, .sgd_unats = 16'000, .adaptive_unats = 31'000},
    {.codec = "powersgd", .key = "rank", .value = 2, .sgd_unats = 42'000, .adaptive_unats = 53'000},
    {.codec = "threshold_sparse", .key = "density", .value = 1, .sgd_unats = 35'000, .adaptive_unats = 57'000},
};

LossLevel level_of(const Row& row, const Method& policy, std::int64_t cost) {
  LossLevel level{std::string(row.codec), method_like(*find_method(row.codec), policy), row.mild, cost};
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
  std::vector<LossLevel> levels = {{"dense", method_of(*find_method("none")), true, 0}};
  if (policy.value("fp16") != 0) {
    levels.push_back({"fp16", method_of(*find_method("fp16")), true, 0});
  }
  for (const Row& row : kRows) {
    const std::int64_t cost = sparse ? row.sgd_unats : row.adaptive_unats;
    if (cost <= budget && (sparse || row.key != "density")) {
      levels.push_back(level_of(row, policy, cost));
    }
  }
  std::ranges::stable_sort(levels, {}, &LossLevel::cost_unats);
  return levels;
}

}  // namespace sirtaki::scheduler
