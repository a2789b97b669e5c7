#include "scheduler/policies/importance.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {
namespace {

using params::kOne;

// Ratio of neighbours on the ladder of rates.
constexpr std::int64_t kStepPermille = 850;
// A delay this much above the smallest one means congestion (as in NetSenseML).
constexpr std::int64_t kDelayedPermille = 1250;
// Late ranks alone never lower a reading of the link by this much.
constexpr std::int64_t kSlowLinkPermille = 667;
// Factor of a trial, and of a trial after one that cost nothing.
constexpr std::int64_t kTrialPermille = 1414;
constexpr std::int64_t kBoldPermille = 2000;
// A smaller change of the rate is not worth a new plan.
constexpr std::int64_t kSameRatePermille = 250;
// Parts of a step. Waits of a few steps vary by kNoise, whatever the payload.
constexpr std::int64_t kNoise = kOne / 16;
constexpr std::int64_t kMore = kOne / 8;
constexpr std::int64_t kMuch = kOne / 4;
// The longer step that a higher rate is worth, as a part of both: at twice the rate a loss is reached in a sixth fewer
// steps (5 and 10 % of the gradients of a byte transformer: benchmarks/importance.py).
constexpr std::int64_t kWorth = kOne / 7;
constexpr std::int64_t kNothing = kOne / 32;
// Profiles after a fall whose steps still wait for queues that the previous rate filled, or whose link was read at that
// rate.
constexpr int kMixed = 2;

// Returns the cube root, rounded down. Requires a value from 0 to below 2^96.
std::int64_t cube_root(Wide value) {
  std::int64_t root = 0;
  for (std::int64_t bit = std::int64_t{1} << 31; bit > 0; bit >>= 1) {
    if (const Wide next = root + bit; next * next * next <= value) {
      root += bit;
    }
  }
  return root;
}

void learn(std::int64_t fresh, std::int64_t& mean) {
  mean = mean == 0 ? fresh : mean + (fresh - mean) / 4;
}

std::int64_t permille_of(std::int64_t value, std::int64_t permille) {
  return static_cast<std::int64_t>(Wide{value} * permille / 1000);
}

// Returns true if steps of `us` at `rate` are better than steps of `lower_us` at a lower rate.
bool is_worth(std::int64_t us, std::int64_t lower_us, std::int64_t rate, std::int64_t lower) {
  return Wide{us - lower_us} * kOne * lower <= Wide{lower_us} * std::min(rate - lower, lower) * kWorth;
}

}  // namespace

Importance::Importance(std::vector<Controlled> tensors, const PlannerOptions& planner,
                       std::shared_ptr<const CodecFacts> facts)
    : tensors_(std::move(tensors)),
      planner_(planner),
      facts_(std::move(facts)),
      method_(controlled_method(tensors_)),
      rate_(std::min(method_.value("start"), method_.value("most"))) {}

std::vector<std::int64_t> shares_by_loss(const std::vector<std::int64_t>& losses) {
  Wide sum = 0;
  for (const std::int64_t loss : losses) {
    if (loss < 0) {
      return {};
    }
    sum += loss;
  }
  if (sum == 0) {
    return {};
  }
  const auto ranks = static_cast<std::int64_t>(losses.size());
  std::vector<std::int64_t> weights;
  Wide total = 0;
  for (const std::int64_t loss : losses) {
    const Wide over_mean = std::clamp<Wide>(Wide{loss} * ranks * kOne / sum, kOne / 4, 4 * kOne);
    // (x/65536)^(2/3) * 65536 = cbrt(x^2 * 65536)
    weights.push_back(cube_root(over_mean * over_mean * kOne));
    total += weights.back();
  }
  for (std::int64_t& weight : weights) {
    weight = static_cast<std::int64_t>(Wide{weight} * ranks * kOne / total);
  }
  return weights;
}

std::vector<std::int64_t> split_keep(std::int64_t keep, std::int64_t group, const std::vector<std::int64_t>& shares) {
  std::vector<std::int64_t> keeps;
  std::vector<std::size_t> by_rest(shares.size());
  std::int64_t left = keep * static_cast<std::int64_t>(shares.size());
  for (std::size_t r = 0; r < shares.size(); ++r) {
    by_rest[r] = r;
    keeps.push_back(keep * shares[r] / kOne);
    left -= keeps.back();
  }
  std::ranges::stable_sort(by_rest, std::greater<>(), [&](std::size_t r) { return keep * shares[r] % kOne; });
  for (std::size_t i = 0; left > 0; ++i, --left) {
    ++keeps[by_rest[i % by_rest.size()]];
  }
  for (std::int64_t& own : keeps) {
    own = std::clamp<std::int64_t>(own, 1, group);
  }
  return keeps;
}

bool Importance::update_shares(const StepProfile& profile) {
  const std::vector<std::int64_t> wanted = splits() ? shares_by_loss(profile.losses) : shares_;
  bool wrong = wanted.size() != shares_.size();
  for (std::size_t r = 0; r < wanted.size() && !wrong; ++r) {
    wrong = 4 * wanted[r] <= 3 * shares_[r] || 4 * wanted[r] >= 5 * shares_[r];
  }
  if (!split_hysteresis_.wants(wrong ? 1 : 0)) {
    return false;
  }
  shares_ = wanted;
  return true;
}

// Payloads of different sizes can travel by gather only.
PlannedTensor Importance::split(PlannedTensor planned, const TensorInfo& tensor) const {
  if (shares_.empty() || planned.decision.codec != CodecId::kGroupTopk) {
    return planned;
  }
  Decision decision = planned.decision;
  decision.reduction = ReductionKind::kGather;
  std::int64_t& keep = decision.params[params::kKeep];
  decision.keeps = split_keep(keep, decision.params[params::kGroup], shares_);
  keep = std::ranges::max(decision.keeps);
  if (keep == std::ranges::min(decision.keeps)) {
    return planned;
  }
  auto by_rank = facts_->planned(tensor, std::move(decision));
  SRT_CHECK(by_rank);
  if (by_rank->wire_bytes >= tensor.held_bytes()) {
    // `planned` is no substitute: with another reduction it may be shorter than the payload of lower rates, and the
    // search for a rate needs a monotonic order.
    auto dense = facts_->planned(tensor, {});
    SRT_CHECK(dense);
    dense->reason = planned.reason + ", sent dense: a gather would be larger";
    return std::move(*dense);
  }
  by_rank->reason = planned.reason + ", by rank " + std::to_string(std::ranges::min(by_rank->decision.keeps)) + " to " +
                    std::to_string(std::ranges::max(by_rank->decision.keeps)) + " by gather";
  return std::move(*by_rank);
}

std::vector<PlannedTensor> Importance::at(std::int64_t rate, const StepProfile& profile,
                                          const std::vector<PlannedTensor>& now) const {
  const Circumstances link = circumstances(profile, planner_.ranks);
  std::vector<PlannedTensor> tensors = now;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].method) {
      auto planned = decide_tensor(at_rate(*tensors_[i].method, rate), tensors_[i].info, link, *facts_);
      SRT_CHECK(planned);
      tensors[i] = split(std::move(*planned), tensors_[i].info);
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
  const auto predicted = [&](std::int64_t rate) { return predict_tensors(at(rate, profile, now), profile, planner_); };
  const auto fits = [&](std::int64_t rate) {
    const Prediction p = predicted(rate);
    return Wide{p.exposed_us} * kOne <= Wide{p.step_us} * method_.value("exposed");
  };
  auto best =
      std::ranges::partition_point(ladder.begin(), ladder.end() - 1, [&](std::int64_t rate) { return !fits(rate); });
  const std::int64_t limit = std::min(permille_of(*best, kBoldPermille), ladder.front());
  for (std::int64_t step_us = predicted(*best).step_us; best != ladder.begin() && *(best - 1) <= limit; --best) {
    const std::int64_t next_us = predicted(*(best - 1)).step_us;
    if (!is_worth(next_us, step_us, *(best - 1), *best)) {
      break;
    }
    step_us = next_us;
  }
  return *best;
}

std::int64_t Importance::aimd_rate(const StepProfile& profile) {
  // The minimum rises by a sixteenth a profile, so that a path that has become longer for good counts as the new one.
  const std::int64_t crept = least_latency_ns_ + least_latency_ns_ / 16;
  least_latency_ns_ = least_latency_ns_ == 0 ? profile.latency_ns : std::min(crept, profile.latency_ns);
  const bool delayed = profile.latency_ns > permille_of(least_latency_ns_, kDelayedPermille);
  const Wide exposed = Wide{profile.exposed_us} * kOne;
  const Wide limit = Wide{profile.step_us} * method_.value("exposed");
  std::int64_t next = rate_;
  if (delayed || exposed > limit) {
    next = static_cast<std::int64_t>(Wide{rate_} * method_.value("down") / kOne);
  } else if (2 * exposed < limit) {
    // The rate stays in between; otherwise it would oscillate forever.
    next = rate_ + method_.value("up");
  }
  return std::clamp(next, std::min(method_.value("least"), method_.value("most")), method_.value("most"));
}

// Late ranks only lower the readings of a link, so the best reading counts until steps wait: a long time in one
// profile, or twice in a row. Writes that reading to `profile`. Returns true if steps wait. `mixed` means that some
// steps ran at a higher rate before.
bool Importance::follow_link(StepProfile& profile, bool mixed) {
  const bool slower = profile.bytes_per_second < permille_of(link_, kSlowLinkPermille);
  const Wide excess = mixed && !slower ? 0 : Wide{profile.exposed_us - skew_us_} * kOne;
  const Wide step = profile.step_us;
  const std::int64_t exposed = method_.value("exposed");
  const bool counts = excess > step * kMuch || (waited_ && excess > step * std::max(exposed, kMore));
  waited_ = excess > step * std::max(exposed, kNoise);
  link_ = counts ? profile.bytes_per_second : std::max(link_, profile.bytes_per_second);
  profile.bytes_per_second = link_;
  return counts;
}

// The skew between ranks varies, and the waits with it, so only the duration of steps tells the cost of a higher rate.
// Returns nullopt if the rate on trial stays and no higher one exists.
std::optional<std::int64_t> Importance::judge_trial(std::int64_t step_us, std::string& why) {
  if (!is_worth(step_us, usual_us_, rate_, probe_.before())) {
    why = ", because the higher rate was not worth the longer steps";
    return probe_.fail();
  }
  const bool free = Wide{step_us - usual_us_} * kOne <= Wide{usual_us_} * kNothing;
  const std::int64_t more = std::min(permille_of(rate_, free ? kBoldPermille : kTrialPermille), method_.value("most"));
  usual_us_ = std::max(usual_us_, step_us);
  if (more <= rate_) {
    probe_.accept();
    return std::nullopt;
  }
  probe_.begin(rate_);
  why = " on trial, because the last trial was worth its cost";
  return more;
}

// Returns nullopt if the rate stays. Writes the reason to `why`, for a person.
std::optional<std::int64_t> Importance::next_budget_rate(const StepProfile& measured,
                                                         const std::vector<PlannedTensor>& now, bool shares_changed,
                                                         std::string& why) {
  StepProfile profile = measured;
  // No step with other shares was measured yet.
  const bool mixed = lowered_ > 0;
  lowered_ -= mixed ? 1 : 0;
  const bool waits = follow_link(profile, mixed) || shares_changed;
  const std::int64_t wanted = budget_rate(profile, now);
  const bool same =
      wanted > permille_of(rate_, 1000 - kSameRatePermille) && wanted < permille_of(rate_, 1000 + kSameRatePermille);
  const Wide longer = Wide{profile.step_us - usual_us_} * kOne;  // than steps at the previous rate
  const bool known = usual_us_ > 0;
  const bool slowed = !known || longer > Wide{usual_us_} * kNoise;
  const int direction = wanted > rate_ && !same ? 1 : wanted < rate_ && !same && waits && slowed ? -1 : 0;
  if (probe_.on()) {
    SRT_CHECK(known);
    if (const auto next = judge_trial(profile.step_us, why)) {
      return next;
    }
  }
  if (!mixed) {
    if (same || wanted > rate_) {
      learn(profile.exposed_us, skew_us_);
    }
    if (!waits || usual_us_ == 0) {
      learn(profile.step_us, usual_us_);
    }
  }
  if (hysteresis_.wants(direction, direction < 0)) {
    // A rate at which no steps were measured says nothing about the capacity of the link.
    if (direction < 0 && known) {
      probe_.fell(rate_);
    } else {
      probe_.changed();
    }
    usual_us_ = direction < 0 ? 0 : usual_us_;
    if (direction > 0 && usual_us_ > 0) {
      // The link may carry even more.
      probe_.begin(rate_);
    }
    return wanted;
  }
  if (const std::int64_t more = std::min(permille_of(rate_, kTrialPermille), method_.value("most"));
      more > rate_ && usual_us_ > 0 && probe_.due(measured.bytes_per_second)) {
    probe_.begin(rate_);
    why = " on trial";
    return more;
  }
  why = direction == 0 ? "stays" : part_text(wanted) + " wanted, to be confirmed";
  return std::nullopt;
}

std::optional<std::vector<PlannedTensor>> Importance::consider(std::uint64_t /*step*/, const StepProfile& profile,
                                                               const std::vector<PlannedTensor>& now) {
  decision_ = "importance: rate " + part_text(rate_) + ", " + ms_text(profile.exposed_us) + " of " +
              ms_text(profile.step_us) + " ms exposed, link " + link_text(profile) + ": ";
  const bool shares_changed = update_shares(profile);
  std::string why;
  const std::optional<std::int64_t> next_rate =
      method_.choice("link") == "aimd" ? aimd_rate(profile) : next_budget_rate(profile, now, shares_changed, why);
  if (!next_rate && !shares_changed) {
    decision_ += why;
    return std::nullopt;
  }
  const std::int64_t before = std::exchange(rate_, next_rate.value_or(rate_));
  lowered_ = rate_ < before ? kMixed : lowered_;
  std::vector<PlannedTensor> next = at(rate_, profile, now);
  const bool changed = !std::ranges::equal(next, now, {}, &PlannedTensor::decision, &PlannedTensor::decision);
  decision_ += (rate_ == before ? "stays" : "now " + part_text(rate_) + why) +
               std::string(shares_changed ? ", shares of the ranks follow their losses" : "");
  return changed ? std::optional(std::move(next)) : std::nullopt;
}

void Importance::restart() {
  rate_ = std::min(method_.value("start"), method_.value("most"));
  least_latency_ns_ = 0;
  shares_.clear();
  hysteresis_ = split_hysteresis_ = {};
  probe_ = {};
  skew_us_ = usual_us_ = link_ = 0;
  waited_ = false;
  lowered_ = 0;
  decision_.clear();
}

}  // namespace sirtaki::scheduler
