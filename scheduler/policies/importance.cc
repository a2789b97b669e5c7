#include "scheduler/policies/importance.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/arith.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kOne = params::kOne;
// Neighbours on the ladder of rates.
constexpr std::int64_t kStepPermille = 850;
// A delay this much above the least one says that the link is congested (as in NetSenseML).
constexpr std::int64_t kDelayedPermille = 1250;
// What is not worth a new plan.
constexpr std::int64_t kSamePermille = 250;

std::int64_t permille_of(std::int64_t value, std::int64_t permille) {
  return static_cast<std::int64_t>(Wide{value} * permille / 1000);
}

}  // namespace

Importance::Importance(std::vector<Controlled> tensors, const PlannerOptions& planner,
                       std::shared_ptr<const CodecFacts> facts)
    : tensors_(std::move(tensors)),
      planner_(planner),
      facts_(std::move(facts)),
      method_(controlled_method(tensors_)),
      rate_(method_.value("start")) {}

std::vector<PlannedTensor> Importance::at(std::int64_t rate, const StepProfile& profile,
                                          const std::vector<PlannedTensor>& now) const {
  const Circumstances link = circumstances(profile, planner_.ranks);
  std::vector<PlannedTensor> tensors = now;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].method) {
      auto planned = decide_tensor(at_rate(*tensors_[i].method, rate), tensors_[i].info, link, *facts_);
      SRT_CHECK(planned);
      tensors[i] = std::move(*planned);
      tensors[i].reason = "importance: " + tensors[i].reason;
    }
  }
  return tensors;
}

std::int64_t Importance::budget_rate(const StepProfile& profile, const std::vector<PlannedTensor>& now) const {
  const std::int64_t least = std::min(method_.value("least"), method_.value("most"));
  std::vector<std::int64_t> ladder = {method_.value("most")};
  while (permille_of(ladder.back(), kStepPermille) > least) {
    ladder.push_back(permille_of(ladder.back(), kStepPermille));
  }
  ladder.push_back(least);
  const auto fits = [&](std::int64_t rate) {
    const Prediction p = predict_tensors(at(rate, profile, now), profile, planner_);
    return Wide{p.exposed_us} * kOne <= Wide{p.step_us} * method_.value("exposed");
  };
  return *std::ranges::partition_point(ladder.begin(), ladder.end() - 1,
                                       [&](std::int64_t rate) { return !fits(rate); });
}

std::int64_t Importance::aimd_rate(const StepProfile& profile) {
  // Creeps up by a sixteenth a profile, so that a path that has got longer for good counts as the new one.
  const std::int64_t crept = least_latency_ns_ + least_latency_ns_ / 16;
  least_latency_ns_ = least_latency_ns_ == 0 ? profile.latency_ns : std::min(crept, profile.latency_ns);
  const bool delayed = profile.latency_ns > permille_of(least_latency_ns_, kDelayedPermille);
  const Wide exposed = Wide{profile.exposed_us} * kOne;
  const Wide limit = Wide{profile.step_us} * method_.value("exposed");
  std::int64_t next = rate_;
  if (delayed || exposed > limit) {
    next = static_cast<std::int64_t>(Wide{rate_} * method_.value("down") / kOne);
  } else if (2 * exposed < limit) {
    // In between it stays, or it would go to and fro for ever.
    next = rate_ + method_.value("up");
  }
  return std::clamp(next, std::min(method_.value("least"), method_.value("most")), method_.value("most"));
}

std::optional<std::vector<PlannedTensor>> Importance::consider(std::uint64_t /*step*/, const StepProfile& profile,
                                                               const std::vector<PlannedTensor>& now) {
  const bool aimd = method_.choice("link") == "aimd";
  const std::int64_t before = rate_;
  decision_ = "importance: rate " + part_text(before) + ", " + ms_text(profile.exposed_us) + " of " +
              ms_text(profile.step_us) + " ms exposed, link " + link_text(profile) + ": ";
  std::int64_t wanted = aimd ? aimd_rate(profile) : budget_rate(profile, now);
  if (!aimd) {
    const bool same =
        wanted > permille_of(before, 1000 - kSamePermille) && wanted < permille_of(before, 1000 + kSamePermille);
    const int direction = same ? 0 : wanted > before ? 1 : -1;
    if (!hysteresis_.wants(direction, direction < 0)) {
      decision_ += direction == 0 ? "stays" : part_text(wanted) + " wanted, to be confirmed";
      return std::nullopt;
    }
  }
  rate_ = wanted;
  std::vector<PlannedTensor> next = at(wanted, profile, now);
  const bool changed = !std::ranges::equal(next, now, {}, &PlannedTensor::decision, &PlannedTensor::decision);
  decision_ += wanted == before ? "stays" : "now " + part_text(wanted);
  return changed ? std::optional(std::move(next)) : std::nullopt;
}

void Importance::restart() {
  rate_ = method_.value("start");
  least_latency_ns_ = 0;
  hysteresis_ = {};
  decision_.clear();
}

}  // namespace sirtaki::scheduler
