#include "scheduler/policies/auto_policy.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/config/option_value.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {
namespace {

using params::kOne;

// A milder level within the first margin of the best step is as good; fewer tensors within the second margin of the
// step of a level are as good.
constexpr std::int64_t kNearPermille = 30;
constexpr std::int64_t kSamePermille = 5;
// A training comes to a loss later by so many times its steps for each nat that a level costs. In benchmarks.frontier
// the last 0.02 nats of dense trainings took 8 to 27 % of their steps, that is 4 to 13 times for a nat.
constexpr std::int64_t kLaterForANat = 13;
// Without a profile of steps, gradients that take no longer than this are not compressed.
constexpr std::int64_t kShortStepUs = 20'000;
// On a faster link a dense step takes at most 24 ms for a million parameters, and the next profile knows the steps.
constexpr std::int64_t kFastLink = 250'000'000;  // bytes per second
// The policy was wrong if measured steps exceed expected ones by this margin in so many consecutive profiles.
constexpr std::int64_t kWrongPermille = 50;
constexpr std::int64_t kMuchWrongPermille = 250;
constexpr int kWrongProfiles = 2;
constexpr int kJudgedProfiles = 8;  // after these a change was right
constexpr int kLongestBan = 512;
// A slower link counts once steps exceed the prediction for the link of before by this margin in so many profiles.
constexpr std::int64_t kBeyondLinkPermille = 250;
constexpr int kBeyondLinkProfiles = 2;

bool within(std::int64_t value, std::int64_t of, std::int64_t permille) {
  return Wide{value} * 1000 <= Wide{of} * (1000 + permille);
}

std::int64_t sent_bytes(const std::vector<PlannedTensor>& tensors) {
  std::int64_t sum = 0;
  for (const PlannedTensor& tensor : tensors) {
    sum += tensor.wire_bytes_of(tensor.numel);
  }
  return sum;
}

}  // namespace

AutoPolicy::AutoPolicy(std::vector<Controlled> tensors, const PlannerOptions& planner,
                       std::shared_ptr<const CodecFacts> facts)
    : tensors_(std::move(tensors)), planner_(planner), facts_(std::move(facts)) {
  const Method& common = controlled_method(tensors_);
  gain_ = common.value("gain");
  levels_ = loss_ladder(common);
  may_compress_ = compresses_any();
}

bool AutoPolicy::compresses_any() const {
  const Circumstances at{.ranks = planner_.ranks};
  const auto changed_by = [&](const LossLevel& level, const TensorInfo& tensor) {
    const auto planned = decide_tensor(level.method, tensor, at, *facts_);
    return planned && planned->decision != Decision{};
  };
  return std::ranges::any_of(tensors_, [&](const Controlled& tensor) {
    return tensor.method &&
           std::ranges::any_of(levels_, [&](const LossLevel& level) { return changed_by(level, tensor.info); });
  });
}

std::string AutoPolicy::limit() const {
  const Method& common = controlled_method(tensors_);
  if (levels_.size() == 1) {
    return "auto sends dense gradients, because no level of compression is within loss_budget; a larger budget allows "
           "some";
  }
  if (!may_compress_) {
    if (std::ranges::none_of(
            tensors_, [](const Controlled& tensor) { return tensor.method && tensor.info.dtype == DType::kF32; })) {
      return "auto sends dense gradients, because no tensor that auto decides is float32";
    }
    return "auto sends dense gradients, because no float32 tensor that auto decides has " +
           format_bytes(common.value("min")) + " and " + std::to_string(common.value("ndim")) +
           " dimensions; smaller values of the keys min and ndim allow more";
  }
  if (common.choice("optimizer") == "other") {
    return "auto goes no further than " + levels_.back().name +
           ", because fewer bits are not known to cost this optimizer little loss; optimizer=adam or optimizer=sgd "
           "gives it the levels of these";
  }
  return {};
}

// No tensor sends more bytes to save a latency on the strength of a reading that may not last.
AutoPolicy::Outcome AutoPolicy::at_level(std::size_t level, const StepProfile& profile,
                                         const std::vector<PlannedTensor>& now) const {
  StepProfile lasting = profile;
  lasting.bytes_per_second = lasting_.cautious(profile.bytes_per_second, sent_bytes(now));
  const Circumstances at = circumstances(lasting, planner_.ranks);
  Outcome outcome{now};
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].method) {
      continue;
    }
    auto planned = decide_tensor(levels_[level].method, tensors_[i].info, at, *facts_);
    if (!planned) {
      planned = stay_dense(tensors_[i].info, "auto: stays dense, " + std::string(planned.status().text()), *facts_);
    }
    SRT_CHECK(planned);
    outcome.tensors[i] = std::move(*planned);
  }
  outcome.step_us = predict_tensors(outcome.tensors, profile, planner_).step_us;
  return outcome;
}

// Returns the profile for a prediction of these tensors, from one that was measured while so many bytes were sent.
StepProfile AutoPolicy::believed(const StepProfile& profile, const std::vector<PlannedTensor>& tensors,
                                 std::int64_t sent) const {
  StepProfile out = profile;
  out.bytes_per_second = lasting_.rate(sent_bytes(tensors), profile.bytes_per_second, sent);
  return out;
}

std::vector<AutoPolicy::Outcome> AutoPolicy::all_levels(const StepProfile& profile,
                                                        const std::vector<PlannedTensor>& now) const {
  const std::int64_t sent = sent_bytes(now);
  std::vector<Outcome> outcomes;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    Outcome outcome = at_level(level, profile, now);
    const std::int64_t face_us = outcome.step_us;
    const StepProfile other = believed(profile, outcome.tensors, sent);
    if (other.bytes_per_second != profile.bytes_per_second) {
      outcome = at_level(level, other, now);
    }
    outcome.face_us = face_us;
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

// Steps of a level that costs loss count as longer, since more of them lead to the same loss.
std::int64_t AutoPolicy::to_a_loss(std::size_t level, std::int64_t step_us) const {
  const Wide later = Wide{step_us} * levels_[level].cost_unats * kLaterForANat / 1'000'000;
  return step_us + static_cast<std::int64_t>(later);
}

// Returns the mildest level that is nearly as good as the best one. `best_us`: as to_a_loss() counts.
std::size_t AutoPolicy::mildest(const std::vector<Outcome>& outcomes, std::int64_t best_us,
                                std::int64_t permille) const {
  std::size_t level = 0;
  while (!within(to_a_loss(level, outcomes[level].step_us), best_us, permille)) {
    ++level;
  }
  return level;
}

std::int64_t AutoPolicy::best_of(const std::vector<Outcome>& outcomes, std::int64_t Outcome::*step_us) const {
  std::int64_t best = to_a_loss(0, outcomes.front().*step_us);
  for (std::size_t level = 1; level < outcomes.size(); ++level) {
    best = std::min(best, to_a_loss(level, outcomes[level].*step_us));
  }
  return best;
}

// It goes down only for a gain, to the mildest level that is nearly as good as the best, and back up only to a level
// that costs less than half the gain. The gap between both conditions keeps the level stable.
std::size_t AutoPolicy::choose(const std::vector<Outcome>& outcomes, std::int64_t now_us) const {
  const std::int64_t best = best_of(outcomes, &Outcome::step_us);
  const std::size_t down = mildest(outcomes, best, kNearPermille);
  if (!judged_) {
    return Wide{best} * kOne < Wide{outcomes.front().step_us} * (kOne - gain_) ? down : 0;
  }
  if (down > level_ &&
      Wide{to_a_loss(down, outcomes[down].step_us)} * kOne < Wide{to_a_loss(level_, now_us)} * (kOne - gain_)) {
    return down;
  }
  return std::min(mildest(outcomes, best, back_permille()), level_);
}

std::int64_t AutoPolicy::back_permille() const {
  return std::max(kSamePermille, gain_ * 1000 / (2 * kOne));
}

// Keeps the tensors that save most, as few as make the step nearly as short.
void AutoPolicy::prune(Outcome& outcome, const Outcome& dense, const StepProfile& profile, std::int64_t sent) const {
  std::vector<std::size_t> changed;
  const auto saved = [&](std::size_t i) {
    return dense.tensors[i].wire_bytes_of(dense.tensors[i].numel) -
           outcome.tensors[i].wire_bytes_of(outcome.tensors[i].numel);
  };
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (outcome.tensors[i].decision.format() != dense.tensors[i].decision.format()) {
      changed.push_back(i);
    }
  }
  std::ranges::stable_sort(changed, [&](std::size_t a, std::size_t b) { return saved(a) > saved(b); });
  const auto with = [&](std::size_t count) {
    Outcome fewer{dense.tensors};
    for (std::size_t k = 0; k < count; ++k) {
      fewer.tensors[changed[k]] = outcome.tensors[changed[k]];
    }
    for (std::size_t k = count; k < changed.size(); ++k) {
      fewer.tensors[changed[k]].reason = "auto: stays dense, compression would not shorten the step";
    }
    fewer.step_us = predict_tensors(fewer.tensors, believed(profile, fewer.tensors, sent), planner_).step_us;
    return fewer;
  };
  std::size_t least = 1;
  std::size_t most = changed.size();
  const std::int64_t target = outcome.step_us;
  while (least < most) {
    const std::size_t middle = (least + most) / 2;
    if (within(with(middle).step_us, target, kSamePermille)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  if (most < changed.size()) {
    outcome = with(most);
  }
}

// Compares steps, as to_a_loss() counts, with those of the level before the last change, scaled by the ratio of the
// predictions for that level now and then. So a change that the model judges wrongly, in either direction, is taken
// back.
bool AutoPolicy::proved_wrong(const StepProfile& profile, const std::vector<Outcome>& outcomes) {
  if (!before_) {
    return false;
  }
  const auto step_us = static_cast<std::int64_t>(Wide{before_->measured_us} * outcomes[before_->level].step_us /
                                                 std::max<std::int64_t>(before_->model_us, 1));
  const std::int64_t expected = to_a_loss(before_->level, step_us);
  const std::int64_t measured = to_a_loss(level_, profile.step_us);
  // A milder level is taken back at once if its first steps are much longer: that costs no more than the loss budget.
  const bool fresh = ++before_->profiles == 1 && before_->level > level_;
  const bool much = fresh && !within(measured, expected, kMuchWrongPermille);
  worse_ = within(measured, expected, kWrongPermille) ? 0 : worse_ + (much ? kWrongProfiles : 1);
  return worse_ >= kWrongProfiles;
}

// Nothing is known of the steps yet, so the level is judged by the time of its gradients alone.
std::optional<std::vector<PlannedTensor>> AutoPolicy::first(const StepProfile& link,
                                                            const std::vector<PlannedTensor>& now) {
  SRT_CHECK(link.knows_link());
  trusted_link_ = first_link_ = link.bytes_per_second;
  lasting_ = LastingLink(first_link_);
  if (trusted_link_ >= kFastLink) {
    return std::nullopt;
  }
  std::vector<Outcome> outcomes = all_levels(all_at_once(link, tensors_.size()), now);
  const std::size_t mildest_good = mildest(outcomes, best_of(outcomes, &Outcome::step_us), kNearPermille);
  while (first_level_ < mildest_good && outcomes[first_level_].step_us > kShortStepUs) {
    ++first_level_;
  }
  level_ = first_level_;
  Outcome& outcome = outcomes[level_];
  decision_ = "auto: " + levels_[level_].name + " at first, gradients take " + ms_text(outcome.step_us) + " ms, " +
              ms_text(outcomes.front().step_us) + " dense, link " + link_text(link);
  explain(outcome, ms_text(outcomes.front().step_us) + " -> " + ms_text(outcome.step_us) + " ms on the measured link");
  return std::move(outcome.tensors);
}

void AutoPolicy::explain(Outcome& outcome, const std::string& change) const {
  constexpr std::int64_t kPerUnat = kDecimalOne / 1'000'000;
  const std::string spent = "about " + decimal_text(levels_[level_].cost_unats * kPerUnat) + " of " +
                            decimal_text(controlled_method(tensors_).value("loss_budget")) + " nats";
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].method && outcome.tensors[i].decision.format() != WireFormat{}) {
      outcome.tensors[i].reason = "auto: " + outcome.tensors[i].reason + ", " + change + ", " + spent;
    }
  }
}

// Small payloads take as long as ranks are late, so the link reads slower the more is compressed, and the policy would
// compress ever more. The fastest reading counts until steps are longer than it explains (as the windowed maximum of
// Cardwell et al., BBR, 2016).
StepProfile AutoPolicy::with_trusted_link(const StepProfile& profile, const std::vector<PlannedTensor>& now) {
  StepProfile seen = profile;
  // Once may be the burst of a traffic shaper.
  const std::int64_t twice = std::min(profile.bytes_per_second, std::exchange(last_link_, profile.bytes_per_second));
  trusted_link_ = std::max(trusted_link_, twice);
  if (trusted_link_ != profile.bytes_per_second && trusted_link_ > 0) {
    seen.bytes_per_second = trusted_link_;
    const std::int64_t expected_us = predict_tensors(now, seen, planner_).step_us;
    slower_ = within(profile.step_us, expected_us, kBeyondLinkPermille) ? 0 : slower_ + 1;
    if (slower_ < kBeyondLinkProfiles) {
      return seen;
    }
  }
  slower_ = 0;
  trusted_link_ = profile.bytes_per_second;
  return profile;
}

// Returns the level of a trial, with what it would be on the link as it reads: only a trial can tell whether the link
// lasts. The nearest of the levels that would be good enough sends least.
std::optional<std::size_t> AutoPolicy::trial(std::vector<Outcome>& outcomes, const StepProfile& profile,
                                             const std::vector<PlannedTensor>& now) {
  const std::int64_t best = std::min(best_of(outcomes, &Outcome::step_us), best_of(outcomes, &Outcome::face_us));
  for (std::size_t level = level_; level-- > 0;) {
    if (outcomes[level].face_us < outcomes[level].step_us &&
        within(to_a_loss(level, outcomes[level].face_us), best, back_permille())) {
      if (++doubted_ < ban_) {
        return std::nullopt;
      }
      outcomes[level] = at_level(level, profile, now);
      return level;
    }
  }
  doubted_ = 0;
  return std::nullopt;
}

// Keeps what the steps in this profile say of the link for larger payloads, and of the trial that led to this level.
void AutoPolicy::learn(std::int64_t shown, std::int64_t sent) {
  if (worse_ > 0 || slower_ > 0) {
    return;
  }
  lasting_.shown(shown, sent, level_ == 0);
  if (!before_ || before_->profiles < kJudgedProfiles) {
    return;
  }
  if (before_->trial) {
    ban_ = kFirstBan;
    lasting_.carried(sent);
  }
  before_.reset();  // steps that get longer from now on have another cause
}

std::optional<std::vector<PlannedTensor>> AutoPolicy::consider(std::uint64_t /*step*/, const StepProfile& measured,
                                                               const std::vector<PlannedTensor>& now) {
  const std::int64_t link_before = trusted_link_;
  const std::int64_t shown = std::min(measured.bytes_per_second, last_link_);  // in two profiles in a row
  const StepProfile profile = with_trusted_link(measured, now);
  const bool other_link = trusted_link_ < link_before || trusted_link_ / 2 > link_before;
  std::vector<Outcome> outcomes = all_levels(profile, now);
  const std::int64_t now_us = predict_tensors(now, profile, planner_).step_us;
  decision_ = "auto: " + levels_[level_].name + ", step " + ms_text(profile.step_us) + " ms measured, " +
              ms_text(now_us) + " predicted, " + ms_text(outcomes.front().step_us) + " dense, link " +
              link_text(profile) + ": ";
  at_rest_ = false;
  if (proved_wrong(profile, outcomes)) {
    if (before_->level > level_) {
      lasting_.failed(measured.bytes_per_second);
    }
    level_ = before_->level;
    decision_ += "steps became longer, back to " + levels_[level_].name;
    banned_ = ban_;
    ban_ = std::min(2 * ban_, kLongestBan);
    before_.reset();
    worse_ = doubted_ = 0;
    hysteresis_ = {};
    return std::move(outcomes[level_].tensors);
  }
  learn(shown, sent_bytes(now));
  if (banned_ > 0) {
    --banned_;
    decision_ += "stays for " + std::to_string(banned_) + " more profiles";
    return std::nullopt;
  }
  std::size_t wanted = choose(outcomes, now_us);
  const auto tried = wanted == level_ ? trial(outcomes, profile, now) : std::nullopt;
  wanted = tried.value_or(wanted);
  const int direction = wanted > level_ ? 1 : wanted < level_ ? -1 : 0;
  const bool judges = !std::exchange(judged_, true) && first_level_ > 0;
  if (!hysteresis_.wants(direction, tried || judges || (other_link && link_before > 0))) {
    at_rest_ = direction == 0 && worse_ == 0 && slower_ == 0;
    decision_ += direction == 0 ? "stays" : levels_[wanted].name + " wanted, to be confirmed";
    return std::nullopt;
  }
  Outcome& outcome = outcomes[wanted];
  if (wanted != 0) {
    const Outcome dense = outcomes.front();
    prune(outcome, dense, profile, sent_bytes(now));
  }
  if (before_ && before_->trial && direction > 0) {
    ban_ = std::min(2 * ban_, kLongestBan);  // it did not last
  }
  before_ = Before{level_, profile.step_us, outcomes[level_].step_us, tried.has_value()};
  level_ = wanted;
  doubted_ = 0;
  const std::string change =
      ms_text(now_us) + " -> " + ms_text(outcome.step_us) + (tried ? " ms on trial" : " ms predicted");
  explain(outcome, change);
  decision_ += levels_[wanted].name + ", " + change;
  return std::move(outcome.tensors);
}

void AutoPolicy::restart() {
  level_ = first_level_;
  judged_ = false;
  // Some ranks may have considered a profile of the step that was given up, and others not.
  trusted_link_ = first_link_;
  last_link_ = 0;
  slower_ = 0;
  hysteresis_ = {};
  before_.reset();
  lasting_ = LastingLink(first_link_);
  worse_ = doubted_ = banned_ = 0;
  ban_ = kFirstBan;
  at_rest_ = false;
  decision_.clear();
}

}  // namespace sirtaki::scheduler
