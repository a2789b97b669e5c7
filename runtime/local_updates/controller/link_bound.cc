#include "runtime/local_updates/controller/link_bound.h"

#include <algorithm>
#include <limits>

#include "runtime/local_updates/controller/fixed_point.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::local_updates {
namespace {

// Sums of a few stay below the limit of 64 bits.
constexpr std::int64_t kMostLoad = std::int64_t{1} << 60;
constexpr std::int64_t kMostScaled = std::numeric_limits<std::int64_t>::max() / 2;
// Minimum number of local steps between two trials, and local steps for each step that synchronous ones waited. Trials
// without gain double it a few times.
constexpr std::int64_t kFewestSteps = 1'000;
constexpr std::int64_t kStepsForOne = 100;
constexpr std::int64_t kMostVain = 3;
// Waits for merges: a small part of all steps; the limit of one round; and the rates of learning and forgetting the
// hidden part. It is forgotten slowly, since it shows only while D is too small. The last constant is its limit.
constexpr std::int64_t kLittlePermille = 25;
constexpr std::int64_t kMostWait = kOneQ16;
constexpr std::int64_t kLearnRounds = 4;
constexpr std::int64_t kForgetRounds = 64;
constexpr std::int64_t kMostHidden = 4 * kOneQ16;
// Threshold of a clearly faster link; smaller changes are noise of a busy machine.
constexpr std::int64_t kFasterPermille = 500;
// Margin that more bits than at present need, so that a load near a bound changes nothing.
constexpr std::int64_t kSparePermille = 1250;
// Limit of the correction of the bits of an encoding.
constexpr std::int64_t kMostWrong = 16;
// Dense merge on a link of which only the waits of synchronous steps are known, as a multiple of their time: a step
// hides at most its own time of transfers, and gradients may have an eighth of the bits.
constexpr std::int64_t kUnknownMerge = 8;
// Exchanges of reports for which a merge without delay waits: norms, sum, votes.
constexpr std::int64_t kReports = 3;

std::int64_t over_step(std::int64_t time_us, std::int64_t step_us) {
  return static_cast<std::int64_t>(std::min<Wide>(Wide{time_us} * kOneQ16 / step_us, kMostLoad));
}

std::int64_t with_margin(std::int64_t load, std::int64_t margin_permille) {
  const Wide one = Wide{1000} * kOneQ16;
  return static_cast<std::int64_t>(std::min<Wide>((Wide{load} * margin_permille + one - 1) / one, kMostScaled));
}

// Returns the H at which nothing waits.
std::int64_t interval_for(std::int64_t load, std::int64_t margin_permille) {
  return std::max<std::int64_t>(with_margin(load, margin_permille), 1);
}

// Returns the nearest D, since every step of delay costs the training something, and half a step of waiting in H is
// little.
std::int64_t delay_for(std::int64_t load, std::int64_t margin_permille) {
  const std::int64_t half = kOneQ16 / 2 * 1000 / margin_permille;
  return load <= 0 ? 0
                   : std::max<std::int64_t>(with_margin(std::max<std::int64_t>(load - half, 0), margin_permille), 1);
}

// A bound rises at once, because steps wait with a low one, and falls only if a load larger by an eighth would need
// less, too.
void follow(std::int64_t& bound, std::int64_t load, std::int64_t margin_permille,
            std::int64_t (*needs)(std::int64_t, std::int64_t)) {
  const std::int64_t needed = needs(load, margin_permille);
  if (needed > bound || needs(load + load / 8, margin_permille) < bound) {
    bound = needed;
  }
}

}  // namespace

void LinkBound::Mean::add(std::int64_t fresh) {
  count = std::min(count + 1, kMeanRounds);
  value += (fresh - value) / count;
}

void LinkBound::Mean::state(StateIo& io) {
  io.field(value, 0, kMostLoad);
  io.field(count, 0, kMeanRounds);
}

void LinkBound::change_encoding(std::int64_t encoding) {
  before_.encoding = encoding_;
  // The last load: a change of the link, on which the mean follows slowly, is what changes encodings.
  before_.load = sent_.count > 0 && encoding_ > 0 ? last_sent_ : 0;
  sent_ = longest_ = {};
  hidden_ = 0;
  // The time of as many bits on the link as it was, since the costs of synchronous steps are those of that link.
  const Wide scaled = Wide{reference_} * bits_[place_of(encoding)] / bits_[place_of(encoding_)];
  reference_ = static_cast<std::int64_t>(std::min<Wide>(scaled, kMostLoad));
  encoding_ = encoding;
  times_.forget();
}

// A decision follows a report by D steps, so the first round with another D would count some steps of the one before.
void LinkBound::Times::add_local(std::int64_t now_us, std::int64_t steps_of_round, std::int64_t delay_of_round) {
  if (steps_of_round != interval || delay_of_round != delay) {
    forget();
    interval = steps_of_round;
    delay = delay_of_round;
    ended_us = 0;
  }
  if (ended_us > 0 && now_us > ended_us && steps_of_round > 0) {
    steps.push_back(std::max<std::int64_t>((now_us - ended_us) / steps_of_round, 1));
    if (static_cast<std::int64_t>(steps.size()) > kMeanRounds) {
      steps.pop_front();
    }
    if (static_cast<std::int64_t>(steps.size()) == kMeanRounds) {
      local = lower_median(std::vector<std::int64_t>(steps.begin(), steps.end()));
    }
  }
  ended_us = now_us;
  age = 0;
}

void LinkBound::Times::add_synchronous(std::int64_t us, std::int64_t steps_of_round) {
  synchronous.add(us);
  ended_us = 0;
  age = std::min(age + steps_of_round, kFewestSteps);
  if (age == kFewestSteps) {
    forget();
  }
}

void LinkBound::Times::forget() {
  local = 0;
  steps.clear();
}

void LinkBound::Times::state(StateIo& io) {
  synchronous.state(io);
  io.field(local, 0, RoundStats::kMaxNowUs);
  io.field(steps, static_cast<std::size_t>(kMeanRounds), 1, RoundStats::kMaxNowUs);
  io.field(interval, 0, RoundStats::kMaxStep);
  io.field(delay, 0, RoundStats::kMaxStep);
  io.field(ended_us, 0, RoundStats::kMaxNowUs);
  io.field(age, 0, kFewestSteps);
  io.field(cost, 0, kMostLoad);
}

void LinkBound::begin_mode(Mode mode) {
  // Fragments and gradients take different times for the same bytes.
  dense_ = dense_longest_ = {};
  if (mode == Mode::kSync) {
    cost_ = times_.synchronous = {};
    times_.cost = 0;
  }
  reference_ = before_.load = 0;
  costly_ = false;
  mode_ = mode;
}

void LinkBound::observe(const RoundStats& stats, Mode mode, std::int64_t steps, std::int64_t delay) {
  local_steps_ = mode == Mode::kSync ? 0 : std::min(local_steps_ + steps, RoundStats::kMaxStep);
  sync_steps_ = mode == Mode::kSync ? steps : sync_steps_;
  if (stats.step_us == 0) {
    interrupted();
    return;
  }
  learn_latency(stats);
  const bool changed = mode != mode_;
  if (changed) {
    begin_mode(mode);
  }
  // Synchronous rounds do not measure compressed differences, so their values survive a trial.
  const bool local = mode == Mode::kLocal;
  if (local && stats.encoding != encoding_) {
    change_encoding(stats.encoding);
  } else if (changed && encoding_ == 0) {
    sent_ = longest_ = {};
  }
  // Zero means unknown: nothing was merged in the round, or the time of gradients was not reported.
  const auto add_known = [&stats](Mean& mean, std::int64_t time_us) {
    if (time_us > 0) {
      mean.add(over_step(time_us, stats.step_us));
    }
  };
  add_known(dense_, stats.dense_us);
  if (local || encoding_ == 0) {
    add_known(sent_, stats.transfer_us);
    add_known(longest_, stats.longest_us);
    last_sent_ = stats.transfer_us > 0 ? over_step(stats.transfer_us, stats.step_us) : last_sent_;
  }
  add_known(dense_longest_, stats.transfer_us > 0
                                ? static_cast<std::int64_t>(Wide{stats.longest_us} * stats.dense_us / stats.transfer_us)
                                : 0);
  if (mode == Mode::kSync) {
    const std::int64_t cost = over_step(stats.stall_us, stats.step_us);
    cost_.add(cost);
    waited_ = static_cast<std::int64_t>(std::min<Wide>(Wide{cost} * steps + waited_, kMostLoad));
    times_.cost = times_.cost == 0 && cost_.count == kMeanRounds ? cost_.value : times_.cost;
    if (times_.cost > 0 && (Wide{cost_.value} > 2 * Wide{times_.cost} || 2 * Wide{cost_.value} < times_.cost)) {
      times_.forget();  // the link has changed
    }
    times_.add_synchronous(stats.step_us + stats.stall_us, steps);
  } else {
    learn_bits();
    times_.add_local(stats.now_us, steps, delay);
    learn_waits(stats, steps);
    if (reference_ == 0 && sent_.count == kMeanRounds) {
      reference_ = std::max<std::int64_t>(sent_.value, 1);
    }
  }
  const auto follow_known = [this](std::int64_t& bound, const Mean& mean, std::int64_t more, auto needs) {
    if (mean.count > 0) {
      follow(bound, mean.value + more, options_.margin_permille, needs);
    }
  };
  follow_known(steps_, sent_, 0, interval_for);
  follow_known(delay_, longest_, 2 * latency_.value + hidden_, delay_for);
  follow_known(merge_delay_, longest_, 2 * latency_.value, delay_for);
  follow_known(link_delay_, longest_, 0, delay_for);
}

std::size_t LinkBound::place_of(std::int64_t encoding) const {
  return std::min(static_cast<std::size_t>(encoding), bits_.size() - 1);
}

// Without the correction, an encoding that was predicted to fit and did not would be tried again and again.
void LinkBound::learn_bits() {
  if (before_.load == 0 || sent_.count == 0) {
    return;
  }
  const Wide nominal = options_.bits_permille[place_of(encoding_)];
  const Wide learned = Wide{bits_[place_of(before_.encoding)]} * sent_.value / before_.load;
  bits_[place_of(encoding_)] = static_cast<std::int64_t>(
      std::clamp<Wide>(learned, std::max<Wide>(nominal / kMostWrong, 1), nominal * kMostWrong));
  if (sent_.count == kMeanRounds) {
    before_.load = 0;  // later the link may have changed
  }
}

std::int64_t LinkBound::load_with(std::int64_t encoding, const Mean& sent, const Mean& dense) const {
  if (encoding == 0 && dense.count > 0) {
    return dense.value;
  }
  const auto bits = [this](std::int64_t index) { return Wide{bits_[place_of(index)]}; };
  const bool known = sent.count > 0;
  const Wide load = Wide{(known ? sent : dense).value} * bits(encoding) / bits(known ? encoding_ : 0);
  return static_cast<std::int64_t>(std::min<Wide>(load, kMostLoad));
}

std::int64_t LinkBound::steps_with(std::int64_t encoding) const {
  const std::int64_t steps =
      is_measured(encoding) ? steps_ : interval_for(load_with(encoding, sent_, dense_), options_.margin_permille);
  return std::max(steps, steps_beyond(merge_delay_with(encoding)));
}

std::int64_t LinkBound::delay_with(std::int64_t encoding) const {
  return is_measured(encoding) ? delay_ : merge_delay_with(encoding);
}

std::int64_t LinkBound::merge_delay_with(std::int64_t encoding) const {
  return is_measured(encoding)
             ? merge_delay_
             : delay_for(load_with(encoding, longest_, dense_longest_) + 2 * latency_.value, options_.margin_permille);
}

bool LinkBound::fits(std::int64_t encoding, std::int64_t steps) const {
  if (is_measured(encoding)) {
    return steps_ <= steps && link_delay_ <= 1;
  }
  const std::int64_t spare = encoding < encoding_ ? kSparePermille : 1000;
  const auto spared = [spare](std::int64_t load) { return static_cast<std::int64_t>(Wide{load} * spare / 1000); };
  return interval_for(spared(load_with(encoding, sent_, dense_)), options_.margin_permille) <= steps &&
         delay_for(spared(load_with(encoding, longest_, dense_longest_)), options_.margin_permille) <= 1;
}

std::int64_t LinkBound::encoding_for(std::int64_t steps) const {
  const auto last = static_cast<std::int64_t>(options_.bits_permille.size()) - 1;
  std::int64_t encoding = 0;
  while (encoding < last && !fits(encoding, steps)) {
    ++encoding;
  }
  return encoding;
}

// The first merge counts as a whole, since its delay may be that of a link without transfers.
bool LinkBound::repays(std::int64_t steps, std::int64_t encoding) const {
  if (options_.gain_permille == 0) {
    return true;
  }
  const auto load = [this](std::int64_t sent_as) {
    const Wide unknown = kUnknownMerge * (Wide{kOneQ16} + cost_.value);
    return is_known() ? Wide{load_with(sent_as, sent_, dense_)}
                      : unknown * options_.bits_permille[place_of(sent_as)] / options_.bits_permille[0];
  };
  const Wide merges = load(encoding) + load(encoding > 0 ? options_.drain_encoding : 0);
  return Wide{steps} * worth_permille() * kOneQ16 / 1000 > merges + 2 * kReports * latency_.value;
}

// The mean of ranks that are near again would never come back to 0.
void LinkBound::learn_latency(const RoundStats& stats) {
  if (stats.latency_us == 0) {
    latency_ = {};
  } else {
    latency_.add(over_step(stats.latency_us, stats.step_us));
  }
}

// The value grows while steps wait, so it converges at the point where they do not.
void LinkBound::learn_waits(const RoundStats& stats, std::int64_t steps) {
  const Wide waited = Wide{over_step(stats.stall_us, stats.step_us)} * steps;
  const Wide much = waited - Wide{steps} * kOneQ16 * kLittlePermille / 1000;
  const auto fresh = static_cast<std::int64_t>(std::clamp<Wide>(much, 0, kMostWait));
  hidden_ = std::min(hidden_ - hidden_ / kForgetRounds + fresh / kLearnRounds, kMostHidden);
}

std::int64_t LinkBound::cost_permille() const {
  return static_cast<std::int64_t>(std::min<Wide>(Wide{cost_.value} * 1000 / kOneQ16, kMostScaled));
}

std::int64_t LinkBound::steps_waited() const {
  return waited_ / kOneQ16;
}

// Local steps that are shorter than synchronous ones without their waits gain no more than these waits: T itself may
// have changed since.
std::int64_t LinkBound::worth_permille() const {
  if (times_.local == 0 || times_.synchronous.count == 0) {
    return cost_permille();
  }
  const Wide gain = Wide{times_.synchronous.value} * 1000 / times_.local - 1000;
  return static_cast<std::int64_t>(std::clamp<Wide>(gain, 0, cost_permille()));
}

// A trial merges the models first, which takes seconds on a slow link. A step gets shorter by at most as much as the
// transfers. A learning rate that rises again raises the least gain above that of local steps. Where a trial has just
// shown that local steps gain enough, their times are no reason for the next one.
bool LinkBound::trial_is_due(std::int64_t gain_permille, std::int64_t least_permille) const {
  const bool worth_less = cost_.count > 0 && (vain_ == 0 ? worth_permille() : cost_permille()) < least_permille;
  const bool faster = sent_.count == kMeanRounds && Wide{sent_.value} * 1000 < Wide{reference_} * kFasterPermille &&
                      Wide{1000 + cost_permille()} * sent_.value < Wide{1000 + gain_permille} * reference_;
  const Wide waited = Wide{std::max(sync_steps_, options_.trial_steps)} * cost_.value / kOneQ16;
  const Wide rest = std::max<Wide>(waited * kStepsForOne, kFewestSteps) << vain_;
  return local_steps_ >= rest || faster || worth_less;
}

LinkBound::Path LinkBound::path(Mode mode, std::int64_t lr_permille) {
  if (options_.one_host && options_.gain_permille > 0) {
    trying_ = costly_ = false;
    return Path::kSync;
  }
  const std::int64_t gain =
      options_.gain_permille + options_.gain_permille * (options_.rate_factor - 1) * lr_permille / 1000;
  const std::int64_t below = gain - std::min(options_.band_permille, gain / 2);
  if (mode == Mode::kLocal) {
    trying_ = trial_is_due(gain, below);
    return trying_ ? Path::kTrial : Path::kLocal;
  }
  const std::int64_t least = trying_ ? below : gain;
  const bool costly = cost_.count > 0 && worth_permille() >= least;
  if (trying_) {
    trying_ = false;
    vain_ = costly ? std::min(vain_ + 1, kMostVain) : 0;
    return costly ? Path::kLocal : Path::kSync;
  }
  // A single round is noise.
  const bool local = costly && costly_;
  costly_ = costly;
  return local ? Path::kLocal : Path::kSync;
}

void LinkBound::state(StateIo& io) {
  for (Mean* mean : {&dense_, &cost_, &sent_, &longest_, &dense_longest_, &latency_}) {
    mean->state(io);
  }
  io.field(hidden_, 0, kMostHidden);
  io.field(mode_, Mode::kLocal);
  io.field(encoding_, 0, RoundStats::kMaxEncoding);
  for (std::size_t encoding = 0; encoding < bits_.size(); ++encoding) {
    const std::int64_t nominal = options_.bits_permille[encoding];
    io.field(bits_[encoding], std::max<std::int64_t>(nominal / kMostWrong, 1), nominal * kMostWrong);
  }
  io.field(before_.encoding, 0, RoundStats::kMaxEncoding);
  io.field(before_.load, 0, kMostLoad);
  times_.state(io);
  io.field(last_sent_, 0, kMostLoad);
  io.field(reference_, 0, kMostLoad);
  io.field(waited_, 0, kMostLoad);
  io.field(sync_steps_, 0, RoundStats::kMaxStep);
  io.field(local_steps_, 0, RoundStats::kMaxStep);
  io.field(trying_);
  io.field(vain_, 0, kMostVain);
  io.field(costly_);
  io.field(steps_, 1, kMostScaled);
  io.field(delay_, 0, kMostScaled);
  io.field(link_delay_, 0, kMostScaled);
  io.field(merge_delay_, 0, kMostScaled);
}

}  // namespace sirtaki::local_updates
