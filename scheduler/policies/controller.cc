#include "scheduler/policies/controller.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/policies/auto_policy.h"
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

std::unique_ptr<Controller> make_controller(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                            const PlannerOptions& planner, std::shared_ptr<const CodecFacts> facts) {
  std::vector<Controlled> controlled;
  std::optional<MethodId> policy;
  for (const TensorInfo& tensor : tensors) {
    controlled.push_back({tensor, std::nullopt});
    for (const Rule& rule : spec.rules) {
      if (!glob_matches(rule.glob, tensor.name)) {
        continue;
      }
      const MethodId id = rule.method.info->id;
      if (id == MethodId::kAuto || id == MethodId::kImportance) {
        policy = id;
        controlled.back().method = rule.method;
      }
      break;
    }
  }
  if (!policy) {
    return nullptr;
  }
  if (*policy == MethodId::kAuto) {
    return std::make_unique<AutoPolicy>(std::move(controlled), planner, std::move(facts));
  }
  return std::make_unique<Importance>(std::move(controlled), planner, std::move(facts));
}

}  // namespace sirtaki::scheduler
