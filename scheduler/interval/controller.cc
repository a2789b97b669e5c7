#include "scheduler/interval/controller.h"

#include <xxhash.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace sirtaki::scheduler::interval {
namespace {

constexpr std::int64_t kWarmupSteps = 500;
constexpr std::int64_t kWarmupPermille = 50;  // of the steps planned
constexpr std::int64_t kWarmupUnplanned = 200;
// Compression ends where intervals without it would be shorter than allowed by so much.
constexpr std::int64_t kDensePermille = 1250;
constexpr std::int64_t kMostExtraDelay = kLongestInterval;

std::int64_t shortest_warmup(const RoundStats& stats, std::int64_t lr_warmup) {
  const std::int64_t planned = stats.steps_left > 0 ? stats.step + stats.steps_left : 0;
  const std::int64_t part =
      planned > 0 ? std::min(kWarmupSteps, planned / 1000 * kWarmupPermille + planned % 1000 * kWarmupPermille / 1000)
                  : kWarmupUnplanned;
  return std::max(lr_warmup, part);
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
  for (const Alarm& alarm : decision.verdict.alarms) {
    text += std::string(", ") + (alarm.level == Level::kRed ? "red" : "yellow") +
            " alarm: " + std::string(guard_name(alarm.guard)) + ", " +
            (alarm.rank < 0 ? "all ranks" : "rank " + std::to_string(alarm.rank)) + " " +
            std::string(action_name(alarm.action));
  }
  return text;
}

IntervalController::IntervalController(const IntervalOptions& options, std::size_t ranks)
    : options_(options),
      ranks_(ranks),
      policy_(make_policy(options)),
      link_(options.link),
      guards_(options.guard, ranks) {}

Result<std::unique_ptr<IntervalController>> IntervalController::make(const IntervalOptions& options,
                                                                     std::size_t ranks) {
  SRT_TRY(check(options));
  if (ranks == 0) {
    return invalid_argument("local updates need at least one rank");
  }
  return std::unique_ptr<IntervalController>(new IntervalController(options, ranks));
}

Result<std::unique_ptr<IntervalController>> IntervalController::restore(const IntervalOptions& options,
                                                                        std::size_t ranks,
                                                                        std::span<const std::int64_t> saved) {
  SRT_ASSIGN(std::unique_ptr<IntervalController> controller, make(options, ranks));
  StateIo io(saved);
  controller->state(io);
  if (!io.complete()) {
    return corrupt("the saved state of local updates does not belong to these options and " + std::to_string(ranks) +
                   " ranks");
  }
  return controller;
}

// The learning rate has risen in the last round: a schedule is still warming it up.
bool IntervalController::warming_up(const RoundStats& stats) {
  const bool rises = highest_lr_pico_ >= 0 && stats.lr_pico > highest_lr_pico_;
  highest_lr_pico_ = std::max(highest_lr_pico_, stats.lr_pico);
  if (options_.warmup >= 0) {
    warm_ = stats.step >= options_.warmup;
  } else if (!warm_) {
    warm_ = !rises && stats.step >= shortest_warmup(stats, options_.lr_warmup);
  }
  return !warm_;
}

void IntervalController::heed(const Verdict& verdict, std::int64_t step) {
  // A rank that is left out for good must not keep the others short.
  const bool calm = std::ranges::none_of(verdict.alarms, [](const Alarm& alarm) { return alarm.rank < 0; });
  calm_ = calm ? calm_ + 1 : 0;
  if (calm_ == options_.guard.calm_rounds) {
    calm_ = 0;
    ceiling_ = std::min(2 * ceiling_, kLongestInterval);
    extra_delay_ = std::max<std::int64_t>(extra_delay_ - 1, 0);
  }
  for (const Alarm& alarm : verdict.alarms) {
    if (lowers_interval(alarm.action)) {
      ceiling_ = std::min(ceiling_, std::max<std::int64_t>(now_.steps / 2, 1));
      ceiling_reason_ = reason_of(alarm.guard);
    } else if (alarm.action == Action::kRetry) {
      extra_delay_ = std::min(extra_delay_ + 1, kMostExtraDelay);
    } else if (pauses(alarm.action)) {
      pause_until_ = step + options_.guard.pause_steps;
      ceiling_ = std::min(ceiling_, options_.base);
      ceiling_reason_ = reason_of(alarm.guard);
      guards_.restart();
    }
  }
}

// Overlap comes by itself; then fewer bits, then longer intervals, then waiting.
void IntervalController::raise_for_link(Bound bound, Wish& wish) const {
  const bool dense_fits = link_.dense_steps() <= std::max<std::int64_t>(bound.steps * 1000 / kDensePermille, 1);
  wish.compress = options_.may_compress && (link_.steps() > bound.steps || (local_.compress && !dense_fits));
  wish.escalation = wish.compress ? Escalation::kCompress : Escalation::kNone;
  if (link_.steps() <= bound.steps) {
    return;
  }
  const bool stalls = link_.steps() > options_.most;
  wish.steps = std::min(link_.steps(), options_.most);
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

IntervalController::Wish IntervalController::wish(const RoundStats& stats, Bound bound) {
  Wish wish;
  if (warming_up(stats)) {
    wish.reason = Reason::kWarmUp;
  } else if (stats.step < pause_until_) {
    wish.reason = now_.mode == Mode::kLocal ? ceiling_reason_ : Reason::kPause;
  } else if (asked_) {
    wish.reason = Reason::kAsked;
  } else if (options_.policy != PolicyId::kAuto) {
    return local_wish(stats, bound);
  } else if (const auto path = link_.path(mode_.mode); path == LinkBound::Path::kLocal) {
    return local_wish(stats, bound);
  } else {
    wish.reason = path == LinkBound::Path::kTrial ? Reason::kTrial : Reason::kFastLink;
  }
  return wish;
}

IntervalController::Wish IntervalController::local_wish(const RoundStats& stats, Bound bound) const {
  Wish wish;
  wish.steps = bound.steps;
  wish.reason = bound.reason;
  if (options_.policy == PolicyId::kAuto) {
    raise_for_link(bound, wish);
  }
  limit(stats, wish);
  return wish;
}

std::int64_t IntervalController::delay_for(std::int64_t steps) const {
  const std::int64_t wanted = options_.delay >= 0 ? options_.delay : link_.delay();
  return std::clamp<std::int64_t>(wanted + extra_delay_, 0, steps - 1);
}

// One step is the synchronous path, but for a last round, after which everything is drained anyway.
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
  now_.delay = delay_for(wish.steps);
  now_.compress = wish.compress;
  now_.escalation = wish.escalation;
  if (wish.escalation == Escalation::kNone && now_.delay > 0) {
    now_.escalation = Escalation::kOverlap;
  }
  local_ = now_;
  return {};
}

Result<Decision> IntervalController::decide(const RoundStats& stats) {
  SRT_CHECK(mode_.mode == Mode::kSync || mode_.mode == Mode::kLocal);
  SRT_TRY(check(stats, ranks_));
  if (stats.step < step_) {
    return corrupt("a round ends at step " + std::to_string(stats.step) + ", before the one before it, at step " +
                   std::to_string(step_));
  }
  Decision decision;
  decision.round = static_cast<std::uint64_t>(round_++);
  const std::int64_t steps = stats.step - step_;
  decision.step = step_ = stats.step;
  decision.verdict = guards_.judge(stats, now_.steps);
  SRT_ASSIGN(const Bound bound, policy_->bound(stats, now_, variance_of(stats, decision.verdict.weights)));
  decision.statistics_steps = bound.steps;
  link_.observe(stats, now_.mode, steps);
  decision.link_steps = link_.steps();
  decision.cost_permille = link_.cost_permille();
  heed(decision.verdict, stats.step);
  const Interval before = now_;
  const auto stop = std::ranges::find(decision.verdict.alarms, Action::kStop, &Alarm::action);
  if (stop != decision.verdict.alarms.end()) {
    SRT_ASSIGN(mode_, next_mode(mode_, Event::kFailed));
    now_ = {.mode = Mode::kFailed, .reason = reason_of(stop->guard)};
  } else {
    SRT_TRY(apply(wish(stats, bound)));
  }
  decision.interval = now_;
  decision.changed = before.steps != now_.steps || before.delay != now_.delay || before.mode != now_.mode ||
                     before.compress != now_.compress;
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
  SRT_CHECK(event != Event::kWantLocal && event != Event::kWantSync);
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
  } else if (event == Event::kMembersChanged || event == Event::kReformed || before.reforming) {
    reason = Reason::kMembers;
  } else if (event == Event::kJoined) {
    reason = Reason::kStart;
  } else if (mode_.mode == Mode::kSync) {
    reason = pending_;
  }
  now_ = resumed(reason);
  return now_;
}

void IntervalController::reform(const std::vector<int>& old_rank) {
  SRT_CHECK(!old_rank.empty());
  ranks_ = old_rank.size();
  guards_.reform(old_rank);
}

void IntervalController::state(StateIo& io) {
  const auto interval = [&io](Interval& value) {
    io.field(value.steps, 1, kLongestInterval);
    io.field(value.delay, 0, kLongestInterval);
    io.field(value.mode, Mode::kFailed);
    io.field(value.reason, Reason::kFailed);
    io.field(value.escalation, Escalation::kStall);
    io.field(value.compress);
  };
  interval(now_);
  interval(local_);
  io.field(mode_.mode, Mode::kFailed);
  io.field(mode_.then, Mode::kFailed);
  io.field(mode_.reforming);
  io.field(pending_, Reason::kFailed);
  io.field(warm_);
  io.field(asked_);
  io.field(highest_lr_pico_, RoundStats::kUnknown, RoundStats::kMaxRate);
  io.field(step_, 0);
  io.field(pause_until_, 0);
  io.field(ceiling_, 1, kLongestInterval);
  io.field(ceiling_reason_, Reason::kFailed);
  io.field(extra_delay_, 0, kMostExtraDelay);
  io.field(calm_, 0);
  io.field(round_, 0);
  link_.state(io);
  guards_.state(io);
  policy_->state(io);
}

std::vector<std::int64_t> IntervalController::saved() {
  StateIo io;
  state(io);
  return io.take();
}

std::uint64_t IntervalController::digest_of(const Decision& decision) {
  std::vector<std::int64_t> values = saved();
  for (const std::int64_t weight : decision.verdict.weights) {
    values.push_back(weight);
  }
  for (const Alarm& alarm : decision.verdict.alarms) {
    values.insert(values.end(), {static_cast<std::int64_t>(alarm.guard), static_cast<std::int64_t>(alarm.level),
                                 static_cast<std::int64_t>(alarm.action), alarm.rank});
  }
  return XXH64(values.data(), values.size() * sizeof(values[0]), 0);
}

}  // namespace sirtaki::scheduler::interval
