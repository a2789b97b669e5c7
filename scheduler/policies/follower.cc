#include "scheduler/policies/follower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "scheduler/plan/arith.h"
#include "scheduler/plan/step_model.h"

namespace sirtaki::scheduler {
namespace {

// Permille of the measured bandwidth at which a new format has to be right, too.
constexpr std::int64_t kSlowerPermille = 800;
constexpr std::int64_t kFasterPermille = 1250;

StepProfile scaled(StepProfile profile, std::int64_t permille) {
  profile.bytes_per_second =
      std::max<std::int64_t>(static_cast<std::int64_t>(Wide{profile.bytes_per_second} * permille / 1000), 1);
  return profile;
}

std::int64_t density_of(const PlannedTensor& tensor) {
  return tensor.decision.codec == CodecId::kThresholdSparse ? tensor.decision.params.at(params::kDensity) : 0;
}

bool wrong_by_a_third(std::int64_t now, std::int64_t wanted) {
  return 4 * wanted <= 3 * now || 3 * wanted >= 4 * now;
}

}  // namespace

Follower::Follower(std::vector<Controlled> tensors, const PlannerOptions& planner,
                   std::shared_ptr<const CodecFacts> facts)
    : tensors_(std::move(tensors)), planner_(planner), facts_(std::move(facts)) {}

// The loop begins with the tensor that is ready last: earlier tensors may use only the time that later ones leave.
std::vector<Method> Follower::methods_at(const StepProfile& profile, const std::vector<PlannedTensor>& now) const {
  const StepModel model(profile, planner_);
  const Circumstances at = circumstances(profile, planner_.ranks);
  std::vector<std::size_t> order(now.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return profile.ready_us[a] > profile.ready_us[b]; });
  std::vector<Method> methods(now.size());
  std::int64_t taken_ns = 0;
  for (const std::size_t i : order) {
    std::int64_t wire = now[i].wire_bytes_of(now[i].numel);
    if (tensors_[i].method) {
      methods[i] = *tensors_[i].method;
    }
    if (tensors_[i].method && follows_density(methods[i])) {
      const auto least = decide_tensor(methods[i], tensors_[i].info, at, *facts_);
      const std::int64_t left_ns = (profile.backward_us - profile.ready_us[i]) * kNsPerUs - taken_ns;
      if (least && least->decision.format().compressed() && left_ns > 0) {
        const Wide fits = Wide{left_ns} * profile.bytes_per_second * planner_.ranks /
                          (Wide{kNsPerSecond} * 2 * std::max(planner_.ranks - 1, 1));
        const Wide density = Wide{methods[i].value("density")} * fits / std::max<std::int64_t>(least->wire_bytes, 1);
        methods[i] = at_density(methods[i], static_cast<std::int64_t>(std::min<Wide>(density, params::kOne)));
      }
      if (const auto planned = decide_tensor(methods[i], tensors_[i].info, at, *facts_)) {
        wire = planned->wire_bytes_of(planned->numel);
      }
    }
    taken_ns += model.occupancy(wire);
  }
  return methods;
}

std::optional<PlannedTensor> Follower::change(std::size_t tensor, const Method& method, const StepProfile& profile,
                                              const PlannedTensor& now) const {
  const auto decided = [&](std::int64_t permille) {
    return decide_tensor(method, tensors_[tensor].info, circumstances(scaled(profile, permille), planner_.ranks),
                         *facts_);
  };
  auto wanted = decided(1000);
  if (!wanted) {
    return std::nullopt;
  }
  const WireFormat format = wanted->decision.format();
  if (format == now.decision.format()) {
    return wrong_by_a_third(density_of(now), density_of(*wanted)) && density_of(now) != 0
               ? std::optional(std::move(*wanted))
               : std::nullopt;
  }
  for (const std::int64_t permille : {kSlowerPermille, kFasterPermille}) {
    if (const auto other = decided(permille); !other || other->decision.format() != format) {
      return std::nullopt;
    }
  }
  return std::move(*wanted);
}

std::optional<std::vector<PlannedTensor>> Follower::consider(std::uint64_t /*step*/, const StepProfile& profile,
                                                             const std::vector<PlannedTensor>& now) {
  const std::vector<Method> methods = methods_at(profile, now);
  std::vector<PlannedTensor> next = now;
  std::string what;
  int changes = 0;
  Wide more = 0;  // bytes
  for (std::size_t i = 0; i < now.size(); ++i) {
    auto changed = tensors_[i].method ? change(i, methods[i], profile, now[i]) : std::nullopt;
    if (!changed) {
      continue;
    }
    if (changes++ == 0) {
      what = now[i].name + " from '" + now[i].reason + "' to '" + changed->reason + "'";
    }
    more += Wide{changed->wire_bytes_of(changed->numel)} - now[i].wire_bytes_of(now[i].numel);
    changed->reason += ", link " + link_text(profile);
    next[i] = std::move(*changed);
  }
  decision_ = "methods: link " + link_text(profile) + ": ";
  if (changes > 1) {
    what += ", and " + std::to_string(changes - 1) + " more";
  }
  const int direction = changes == 0 ? 0 : more > 0 ? 1 : -1;
  if (!hysteresis_.wants(direction)) {
    decision_ += direction == 0 ? "stay" : what + " wanted, to be confirmed";
    return std::nullopt;
  }
  decision_ += what;
  return next;
}

void Follower::restart() {
  hysteresis_ = {};
  decision_.clear();
}

}  // namespace sirtaki::scheduler
