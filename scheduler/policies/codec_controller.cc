#include "scheduler/policies/codec_controller.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/policies/auto_policy.h"
#include "scheduler/policies/follower.h"
#include "scheduler/policies/importance.h"

namespace sirtaki::scheduler {

const Method& controlled_method(const std::vector<Controlled>& tensors) {
  const auto found = std::ranges::find_if(tensors, [](const Controlled& c) { return c.method.has_value(); });
  SRT_CHECK(found != tensors.end());
  return *found->method;
}

Circumstances circumstances(const StepProfile& profile, int ranks) {
  return {ranks, LinkFacts{profile.latency_ns, profile.bytes_per_second}};
}

std::string link_text(const StepProfile& profile) {
  return std::to_string(profile.bytes_per_second / 1000) + " kB/s and " + std::to_string(profile.latency_ns / 1000) +
         " us";
}

std::unique_ptr<CodecController> make_controller(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                                 const PlannerOptions& planner,
                                                 std::shared_ptr<const CodecFacts> facts) {
  std::vector<Controlled> controlled;
  std::vector<Controlled> following;
  std::optional<MethodId> policy;
  bool follows = false;
  for (const TensorInfo& tensor : tensors) {
    controlled.push_back({tensor, std::nullopt});
    following.push_back({tensor, std::nullopt});
    const auto rule =
        std::ranges::find_if(spec.rules, [&](const Rule& r) { return glob_matches(r.glob, tensor.name); });
    if (rule == spec.rules.end()) {
      continue;
    }
    if (const MethodId id = rule->method.info->id; id == MethodId::kAuto || id == MethodId::kImportance) {
      policy = id;
      controlled.back().method = rule->method;
    } else if (follows_link(rule->method, tensor, *facts)) {
      follows = true;
      following.back().method = rule->method;
    }
  }
  if (policy == MethodId::kAuto) {
    return std::make_unique<AutoPolicy>(std::move(controlled), planner, std::move(facts));
  }
  if (policy == MethodId::kImportance) {
    return std::make_unique<Importance>(std::move(controlled), planner, std::move(facts));
  }
  return follows ? std::make_unique<Follower>(std::move(following), planner, std::move(facts)) : nullptr;
}

}  // namespace sirtaki::scheduler
