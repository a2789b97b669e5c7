#include "runtime/local_updates/controller/interval_controller.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/digest.h"
#include "runtime/local_updates/controller/fixed_point.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::int64_t kWarmupSteps = 500;
constexpr std::int64_t kWarmupPermille = 50;  // part of the planned steps
constexpr std::int64_t kWarmupUnplanned = 200;
constexpr std::int64_t kParts = 5;  // one such part of a warm-up or pause is made, whatever the waits
// Steps without a rise of the learning rate, after which the warm-up of its schedule is over.
constexpr std::int64_t kRestOfRate = 16;
constexpr std::int64_t kMostExtraDelay = kLongestInterval;
// Part of the highest learning rate below which the rate has fallen: a schedule that changes by the epoch falls by as
// little in its first ones. Smaller changes are those of a rate that rests.
constexpr std::int64_t kFallenPermille = 999;
// Steps in which a rate that rests stood still, at least, and as a part of the planned steps, or of those made.
constexpr std::int64_t kRestSteps = 64;
constexpr std::int64_t kRestPermille = 50;

// Returns 0 if it is not known.
std::int64_t planned_steps(const RoundStats& stats) {
  return stats.steps_left > 0 ? stats.step + stats.steps_left : 0;
}

std::int64_t warmup_of(const RoundStats& stats) {
  const std::int64_t planned = planned_steps(stats);
  return planned > 0 ? std::min(kWarmupSteps, planned * kWarmupPermille / 1000) : kWarmupUnplanned;
}

// Returns true if steps and their waits, in steps, have taken as long as `wanted` steps without waits.
bool has_lasted(std::int64_t steps, std::int64_t waited, std::int64_t wanted) {
  return steps >= wanted / kParts && steps + waited >= wanted;
}

LinkOptions link_options(const IntervalOptions& options) {
  LinkOptions link = options.link;
  link.fixed_delay = options.delay >= 0;
  return link;
}

bool lowers_interval(Action action) {
  return action == Action::kPullBack || action == Action::kHalve;
}

bool pauses(Action action) {
  return action == Action::kRollBack || action == Action::kPause;
}

}  // namespace

std::string to_string(const Decision& decision) {
  std::string text = "round " + std::to_string(decision.round) + ", step " + std::to_string(decision.step) + ": " +
                     to_string(decision.interval) + " (statistics " + std::to_string(decision.statistics_steps) +
                     ", link " + std::to_string(decision.link_steps) + ", synchronous steps wait " +
                     std::to_string(decision.cost_permille / 10) + "%)";
  for (const Alarm& alarm : decision.alarms) {
    text += std::string(", ") + (alarm.level == Level::kRed ? "red" : "yellow") +
            " alarm: " + std::string(guard_name(alarm.guard)) + ", " +
            (alarm.rank < 0 ? "all ranks" : "rank " + std::to_string(alarm.rank)) + " " +
            std::string(action_name(alarm.action));
  }
  return text;
}

IntervalController::IntervalController(const IntervalOptions& options, std::size_t ranks, std::size_t fragments)
    : options_(options),
      ranks_(ranks),
      fragments_(fragments),
      policy_(make_policy(options)),
      link_(link_options(options)),
      guards_(options.guard, ranks, fragments) {
  // A training without a warm-up goes on with the rate of an earlier one, or is asked to begin at once.
  rate_.rests = options.warmup == 0;
}

Result<std::unique_ptr<IntervalController>> IntervalController::make(const IntervalOptions& options, std::size_t ranks,
                                                                     std::size_t fragments) {
  SRT_TRY(check(options));
  if (ranks == 0 || fragments == 0) {
    return invalid_argument("local updates need at least one rank and one fragment");
  }
  return std::unique_ptr<IntervalController>(new IntervalController(options, ranks, fragments));
}

// A schedule that falls by little in a round falls again and again; a rate that rests changes between the same values
// at most.
void IntervalController::Rate::follow(const RoundStats& stats) {
  if (stats.lr_pico < 0) {
    return;
  }
  if (highest_pico < 0) {
    highest_pico = lowest_pico = stats.lr_pico;
    last_fall = stats.step;
  } else if (stats.lr_pico > highest_pico) {
    last_rise = stats.step;
    rests = rests && !fell && Wide{stats.lr_pico} * kFallenPermille <= Wide{highest_pico} * 1000;
    highest_pico = stats.lr_pico;
    lowest_pico = rests ? lowest_pico : highest_pico;
    fell = false;
  } else if (stats.lr_pico < lowest_pico) {
    last_fall = stats.step;
    lowest_pico = stats.lr_pico;
    fell = fell || permille(stats) < kFallenPermille;
  }
  const std::int64_t all = std::max(planned_steps(stats), stats.step);
  rests = rests || stats.step - std::max(last_rise, last_fall) >= std::max(kRestSteps, all * kRestPermille / 1000);
}

std::int64_t IntervalController::Rate::permille(const RoundStats& stats) const {
  return stats.lr_pico < 0 || highest_pico <= 0 ? 1000
                                                : static_cast<std::int64_t>(Wide{stats.lr_pico} * 1000 / highest_pico);
}

// Steps count with their waits: on a slow link a part of the steps is a larger part of the time. While the learning
// rate rises, a schedule is still warming it up.
bool IntervalController::warming_up(const RoundStats& stats) {
  rate_.follow(stats);
  if (options_.warmup >= 0) {
    warm_ = stats.step >= options_.warmup;
  } else if (!warm_) {
    const std::int64_t part = warmup_of(stats);
    const bool rises = rate_.last_rise > 0 && stats.step - rate_.last_rise < kRestOfRate;
    warm_ = !rises && stats.step >= options_.lr_warmup && has_lasted(stats.step, link_.steps_waited(), part);
  }
  return !warm_;
}

bool IntervalController::rate_is_high(const RoundStats& stats) const {
  const bool may_fall = rate_.fell || !rate_.rests;
  return options_.policy == PolicyId::kAuto && options_.link.gain_permille > 0 && may_fall && stats.lr_pico >= 0 &&
         rate_.permille(stats) > options_.link.most_rate_permille;
}

// Steps count with their waits, as in the warm-up.
bool IntervalController::pausing(std::int64_t step) const {
  const std::int64_t all = options_.guard.pause_steps;
  return !has_lasted(step - (pause_until_ - all), link_.steps_waited() - waited_before_, all);
}

void IntervalController::apply_alarms(const std::vector<Alarm>& alarms, std::int64_t step) {
  // A rank that is excluded for good must not keep intervals short for the others.
  const bool calm = std::ranges::none_of(alarms, [](const Alarm& alarm) { return alarm.rank < 0; });
  calm_ = calm ? calm_ + 1 : 0;
  if (calm_ >= options_.guard.calm_rounds) {
    calm_ = 0;
    ceiling_ = std::min(2 * ceiling_, kLongestInterval);
    extra_delay_ = std::max<std::int64_t>(extra_delay_ - 1, 0);
  }
  for (const Alarm& alarm : alarms) {
    if (lowers_interval(alarm.action)) {
      ceiling_ = std::min(ceiling_, std::max<std::int64_t>(local_.steps / 2, 1));
      ceiling_reason_ = reason_of(alarm.guard);
    } else if (alarm.action == Action::kRetry) {
      extra_delay_ = std::min(extra_delay_ + 1, kMostExtraDelay);
    } else if (pauses(alarm.action)) {
      pause_until_ = step + options_.guard.pause_steps;
      waited_before_ = link_.steps_waited();
      ceiling_ = std::min(ceiling_, options_.base);
      ceiling_reason_ = reason_of(alarm.guard);
    }
    if (alarm.action == Action::kRollBack) {
      guards_.restart();
    }
  }
}

// The order of measures is overlap, which needs no decision; then fewer bits; then longer intervals; then waits. Fewer
// bits are preferred to merges more than a step late, too, because they cost a training less than the delay does.
void IntervalController::raise_for_link(std::int64_t allowed, Wish& wish) const {
  if (options_.may_compress) {
    // Nothing is known before the first merge. Synchronous steps wait for the link, so it had better be a small one.
    const std::int64_t unknown =
        mode_.mode == Mode::kLocal ? now_.encoding : static_cast<std::int64_t>(options_.link.bits_permille.size()) - 1;
    wish.encoding = link_.is_known() ? link_.encoding_for(allowed) : unknown;
  }
  wish.escalation = wish.encoding > 0 ? Escalation::kCompress : Escalation::kNone;
  const std::int64_t needed = options_.may_compress ? link_.steps_with(wish.encoding) : link_.steps();
  if (needed <= allowed) {
    return;
  }
  const bool stalls = needed > options_.most;
  wish.steps = std::min(needed, options_.most);
  wish.reason = stalls ? Reason::kLinkAtMost : Reason::kLink;
  wish.escalation = stalls ? Escalation::kStall : Escalation::kLonger;
}

void IntervalController::limit(const RoundStats& stats, Wish& wish) const {
  const auto at_most = [&wish](std::int64_t steps, Reason reason) {
    if (wish.steps > steps) {
      wish.steps = steps;
      wish.reason = reason;
    }
  };
  at_most(options_.most, Reason::kAtMost);
  if (policy_->grows()) {
    at_most(2 * local_.steps, Reason::kGrowing);
  }
  at_most(ceiling_, ceiling_reason_);
  if (wish.steps > 1 && stats.steps_left > 0) {
    at_most(stats.steps_left, Reason::kLastRound);
  }
}

Result<IntervalController::Wish> IntervalController::wish(const RoundStats& stats, Decision& decision) {
  const bool warms_up = warming_up(stats);
  SRT_ASSIGN(const Bound bound, policy_->bound({stats, now_, rate_.highest_pico}));
  decision.statistics_steps = bound.steps;
  Wish wish;
  const bool automatic = options_.policy == PolicyId::kAuto;
  if (const bool high = rate_is_high(stats); warms_up || high) {
    // Waits count, so that local steps begin as soon as they may.
    if (automatic && mode_.mode == Mode::kSync) {
      link_.path(mode_.mode, rate_.permille(stats));
    }
    wish.reason = warms_up ? Reason::kWarmUp : Reason::kHighRate;
    return wish;
  }
  if (pausing(stats.step)) {
    wish.reason = now_.mode == Mode::kLocal ? ceiling_reason_ : Reason::kPause;
    return wish;
  }
  if (synchronous_wanted_) {
    wish.reason = Reason::kAsked;
    return wish;
  }
  if (automatic) {
    if (const auto path = link_.path(mode_.mode, rate_.permille(stats)); path != LinkBound::Path::kLocal) {
      wish.reason = path == LinkBound::Path::kTrial ? Reason::kTrial : Reason::kFastLink;
      return wish;
    }
  }
  wish.steps = bound.steps;
  wish.reason = bound.reason;
  if (automatic) {
    raise_for_link(bound.steps, wish);
  }
  limit(stats, wish);
  const bool begins = automatic && mode_.mode == Mode::kSync && wish.steps > 1;
  if (begins && stats.steps_left > 0 && !link_.repays(stats.steps_left, wish.encoding)) {
    return Wish{.reason = Reason::kLastRound};
  }
  return wish;
}

std::int64_t IntervalController::delay_for(const Wish& wish) const {
  const std::int64_t hides = options_.may_compress ? link_.delay_with(wish.encoding) : link_.delay();
  const std::int64_t wanted = options_.delay >= 0 ? options_.delay : hides;
  return std::clamp<std::int64_t>(wanted + extra_delay_, 0, wish.steps - 1);
}

// One step means the synchronous path, except in a last round, after which all is drained anyway.
Status IntervalController::apply(const Wish& wish) {
  const bool local = wish.steps > 1 || (wish.reason == Reason::kLastRound && now_.mode == Mode::kLocal);
  SRT_ASSIGN(mode_, next_mode(mode_, local ? Event::kWantLocal : Event::kWantSync));
  now_ = {.mode = mode_.mode, .reason = wish.reason};
  if (!local) {
    local_ = wish.reason == Reason::kTrial ? local_ : Interval{};
    pending_ = wish.reason;
    return {};
  }
  now_.steps = wish.steps;
  now_.delay = delay_for(wish);
  now_.encoding = wish.encoding;
  if (now_.encoding != local_.encoding) {
    guards_.forget_variances();
  }
  now_.escalation = wish.escalation;
  if (wish.escalation == Escalation::kNone && now_.delay > 0) {
    now_.escalation = Escalation::kOverlap;
  }
  local_ = now_;
  return {};
}

// An alarm in the drain leads to synchronous steps, whatever its target was.
Status IntervalController::end_drain() {
  if (pausing(step_) && mode_.then == Mode::kLocal) {
    SRT_ASSIGN(mode_, next_mode(mode_, Event::kWantSync));
    pending_ = ceiling_reason_;
    local_ = {};
  }
  const bool reforming = mode_.reforming;
  SRT_ASSIGN(mode_, next_mode(mode_, Event::kDrained));
  const Reason then = mode_.mode == Mode::kSync ? pending_ : Reason::kResumed;
  now_ = resumed(reforming ? Reason::kMembers : then);
  return {};
}

void IntervalController::fail(Reason reason) {
  mode_ = {Mode::kFailed, Mode::kFailed, false};
  now_ = {.mode = Mode::kFailed, .reason = reason};
}

Result<Decision> IntervalController::decide(const RoundStats& stats) {
  const Mode mode = mode_.mode;
  if (mode != Mode::kSync && mode != Mode::kLocal && mode != Mode::kDrain) {
    return bug("a round of local updates ends in mode " + std::string(mode_name(mode)));
  }
  SRT_TRY(check(stats, ranks_, fragments_));
  if (stats.step < step_) {
    return corrupt("a round ends at step " + std::to_string(stats.step) + ", before the one before it, at step " +
                   std::to_string(step_));
  }
  const Interval before = now_;
  Decision decision;
  decision.round = static_cast<std::uint64_t>(round_++);
  decision.alarms = guards_.judge(stats);
  apply_alarms(decision.alarms, stats.step);
  const std::int64_t steps = stats.step - std::exchange(step_, stats.step);
  decision.step = step_;
  const auto stop = std::ranges::find(decision.alarms, Action::kStop, &Alarm::action);
  if (stop != decision.alarms.end()) {
    fail(reason_of(stop->guard));
  } else if (mode == Mode::kDrain) {
    guards_.drained();
    link_.interrupted();
    SRT_TRY(end_drain());
  } else {
    link_.observe(stats, mode, steps, now_.delay);
    SRT_ASSIGN(const Wish next, wish(stats, decision));
    SRT_TRY(apply(next));
  }
  decision.link_steps = link_.steps();
  decision.cost_permille = link_.cost_permille();
  decision.interval = now_;
  decision.changed = before.steps != now_.steps || before.delay != now_.delay || before.mode != now_.mode ||
                     before.encoding != now_.encoding;
  decision.digest = digest_of(decision);
  return decision;
}

Interval IntervalController::resumed(Reason reason) const {
  if (mode_.mode == Mode::kLocal && local_.steps > 1) {
    Interval local = local_;
    local.reason = reason;
    return local;
  }
  return {.mode = mode_.mode, .reason = reason};
}

Result<Interval> IntervalController::happened(Event event) {
  SRT_CHECK(event != Event::kWantLocal && event != Event::kWantSync && event != Event::kDrained);
  const ModeState before = mode_;
  SRT_ASSIGN(mode_, next_mode(mode_, event));
  if (mode_ == before) {
    return now_;
  }
  Reason reason = Reason::kResumed;
  if (event == Event::kFailed) {
    reason = Reason::kFailed;
  } else if (event == Event::kWantDrain) {
    reason = Reason::kDrain;
  } else if (event == Event::kMembersChanged || event == Event::kReformed) {
    reason = Reason::kMembers;
  } else if (event == Event::kJoined) {
    reason = Reason::kStart;
  }
  now_ = resumed(reason);
  return now_;
}

void IntervalController::reform(const std::vector<int>& old_rank) {
  SRT_CHECK(!old_rank.empty());
  ranks_ = old_rank.size();
  guards_.reform(old_rank);
}

std::uint64_t IntervalController::digest_of(const Decision& decision) const {
  std::vector<std::int64_t> values = saved();
  values.insert(values.end(), {decision.statistics_steps, decision.link_steps, decision.cost_permille});
  for (const Alarm& alarm : decision.alarms) {
    values.insert(values.end(), {static_cast<std::int64_t>(alarm.guard), static_cast<std::int64_t>(alarm.level),
                                 static_cast<std::int64_t>(alarm.action), alarm.rank});
  }
  return sirtaki::digest_of(std::as_bytes(std::span(values)));
}

}  // namespace sirtaki::local_updates
