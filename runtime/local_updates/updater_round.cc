// The end of a round: what ranks measured, what follows from it, and what guards ask for.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/digest.h"
#include "runtime/local_updates/reports.h"
#include "runtime/local_updates/updater.h"

namespace sirtaki::local_updates {
namespace {

// After so many local rounds without a loss, the program will hardly report one.
constexpr int kRoundsWithoutLoss = 8;
constexpr int kLossNoted = -1;

// Returns the first rank without an alarm.
Rank healthy_rank(const std::vector<Alarm>& alarms, int ranks) {
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (std::ranges::none_of(alarms, [rank](const Alarm& alarm) { return alarm.rank == rank; })) {
      return rank;
    }
  }
  return -1;
}

// Returns the variance of the differences of a round over the square of their mean.
double divergence_of(const std::vector<Merge>& merges) {
  double variance = 0;
  double mean = 0;
  for (const Merge& merge : merges) {
    variance += variance_of(merge);
    mean += merge.mean_norm2;
  }
  return mean > 0 ? variance / mean : 0;
}

}  // namespace

Result<LocalOutcome> LocalUpdater::start() {
  SRT_TRY(failure_);
  if (started_) {
    return invalid_argument("local updates were started before");
  }
  started_ = true;
  LocalOutcome outcome;
  const auto run = [&]() -> Status {
    std::uint64_t layout = 0;
    for (const FragmentLayout& fragment : model_.fragments) {
      layout = digest_of(std::as_bytes(std::span(&fragment.numel, 1)), layout);
    }
    for (const LocalBuffer& buffer : model_.buffers) {
      const std::array<std::int64_t, 3> shape = {buffer.view.numel, static_cast<std::int64_t>(buffer.rule),
                                                 buffer.mean};
      layout = digest_of(std::as_bytes(std::span(shape)), layout);
    }
    SRT_ASSIGN(const Reports reports,
               exchange_reports({ReportKind::kDigest, 0}, encode_digests({digest(options_), layout}), "the start"));
    SRT_ASSIGN(const auto digests, decode_digests(reports, 2));
    for (std::size_t rank = 1; rank < digests.size(); ++rank) {
      if (digests[rank] != digests[0]) {
        return Status(
            Code::kMismatch,
            "rank " + std::to_string(rank) +
                " has other options of local updates, or another model or buffers, than rank 0; give all the same, and "
                "call the model on all of them before the first step",
            {static_cast<Rank>(rank), {}});
      }
    }
    SRT_ASSIGN([[maybe_unused]] const Interval joined, controller_->happened(Event::kJoined));
    SRT_TRY(post_round(0, false));
    return decide_posted(outcome);
  };
  const Status status = run();
  return end_call(status, std::move(outcome));
}

Result<Reports> LocalUpdater::exchange_reports(Channel channel, ConstBytes mine, const std::string& what) {
  SRT_TRY(exchange_.post(channel, mine));
  return receive(channel, what);
}

Result<Reports> LocalUpdater::receive(Channel channel, const std::string& what) {
  const TimePoint begin = exchange_.now();
  auto reports = exchange_.received(channel, options_.timeout);
  totals_.waited_ns += (exchange_.now() - begin).count();
  if (!reports) {
    return Status(Code::kTimeout, "a rank did not reach " + what + " of local updates within the timeout");
  }
  return std::move(*reports);
}

// ---- rounds ----

void LocalUpdater::begin_span(std::string name) {
  const TimePoint now = exchange_.now();
  if (!span_.name.empty()) {
    exchange_.mark(span_.name, span_.begin, now);
  }
  span_.name = std::move(name);
  span_.begin = now;
}

void LocalUpdater::begin_round(std::int64_t base) {
  const bool local = is_local();
  begin_span("local updates, " + to_string(interval()));
  const bool warms_up = interval().reason == Reason::kWarmUp && options_.interval.warmup < 0;
  const std::int64_t synchronous = warms_up ? options_.warmup_round_steps : options_.sync_round_steps;
  const std::int64_t steps = local ? interval().steps : synchronous;
  round_.begin = base;
  round_.end = base + steps;
  // The warm-up ends at the requested step.
  if (const std::int64_t warmup = options_.interval.warmup; !local && warmup > base) {
    round_.end = std::min(round_.end, warmup);
  }
  const auto count = static_cast<std::int64_t>(progress_.size());
  for (std::size_t p = 0; p < progress_.size(); ++p) {
    // Snapshots are staggered over the round; the last one ends it.
    const std::int64_t place = static_cast<std::int64_t>(p) + 1;
    progress_[p].snapshot = local ? base + (place * steps + count - 1) / count : -1;
  }
}

// Returns the number of steps from the report of a round to its end, in which the decision arrives.
std::int64_t LocalUpdater::lag() const {
  const std::int64_t steps = round_.end - round_.begin;
  return std::clamp<std::int64_t>(is_local() ? interval().delay : 1, 0, steps - 1);
}

Status LocalUpdater::post_round(std::int64_t end, bool compare) {
  SRT_CHECK(!round_.posted);
  const bool synchronous = interval().mode == Mode::kSync;
  RoundReport report{meter_.report(synchronous, micros(exchange_.latency())), decisions_digest_};
  report.round.step = end;
  if (report.round.steps_left >= 0) {
    report.round.steps_left = std::max<std::int64_t>(report.round.steps_left - (end - step_), 0);
  }
  // A model that is not finite shows in its differences; its loss would send all ranks back.
  if (!synchronous && !std::isfinite(report.round.loss_after) && !model_.all_finite()) {
    report.round.loss_known = false;
  }
  if (compare) {
    report.round.digest = synchronous ? model_.digest() : anchors_digest();
    round_.compared_at = end;
  }
  report.round.late_tags = late_;
  report.round.now_us = now_us();
  SRT_TRY(exchange_.post({ReportKind::kRound, 0}, encode(report)));
  round_.posted = Posted{end, std::exchange(merges_, {}), std::exchange(late_, 0)};
  return {};
}

Status LocalUpdater::decide_posted(LocalOutcome& outcome) {
  SRT_CHECK(round_.posted.has_value());
  SRT_ASSIGN(const Reports reports, receive({ReportKind::kRound, 0}, "the end of a round"));
  Posted posted = std::move(*round_.posted);
  round_.posted.reset();
  SRT_ASSIGN(const auto ranks, decode_rounds(reports));
  SRT_ASSIGN(RoundStats stats, agree(ranks));
  totals_.divergence = posted.merges.empty() ? totals_.divergence : divergence_of(posted.merges);
  stats.merges = std::move(posted.merges);
  const Mode before = interval().mode;
  const std::int64_t encoding = encoding_in_force();
  note_losses(stats);
  SRT_ASSIGN(const Decision decision, controller_->decide(stats));
  meter_.next_round();
  record(decision);
  outcome.decisions.push_back(decision);
  SRT_TRY(handle_alarms(decision.alarms, before != Mode::kSync, outcome));
  return follow_mode(before, encoding, outcome);
}

// The round ended otherwise before its decision.
Status LocalUpdater::discard_round() {
  if (!round_.posted) {
    return {};
  }
  SRT_ASSIGN([[maybe_unused]] const Reports reports, receive({ReportKind::kRound, 0}, "the end of a round"));
  merges_.insert(merges_.begin(), round_.posted->merges.begin(), round_.posted->merges.end());
  late_ += round_.posted->late;
  round_.posted.reset();
  return {};
}

void LocalUpdater::record(const Decision& decision) {
  ++totals_.rounds;
  totals_.statistics_steps = decision.statistics_steps;
  totals_.link_steps = decision.link_steps;
  totals_.cost_permille = decision.cost_permille;
  decisions_digest_ = digest_of(std::as_bytes(std::span(&decision.digest, 1)), decisions_digest_);
  for (const Alarm& alarm : decision.alarms) {
    ++totals_.alarms[static_cast<std::size_t>(alarm.guard)];
  }
  if (log_ == nullptr) {
    return;
  }
  const std::string sent = interval().encoding > 0 ? ", differences as " + codec_in_force() : "";
  const std::string outer = options_.outer.on ? ", " + to_string(effective_rate()) : "";
  const std::string text = "local updates: " + to_string(decision) + sent + outer;
  if (!decision.alarms.empty()) {
    log_->warn(text);
  } else if (decision.changed) {
    log_->info(text);
  }
}

// The interval of auto needs no loss, but a guard does.
void LocalUpdater::note_losses(const RoundStats& stats) {
  if (stats.loss_known || !stats.loss_finite) {
    rounds_without_loss_ = kLossNoted;
  }
  if (!is_local() || !options_.interval.guard.on || rounds_without_loss_ == kLossNoted ||
      ++rounds_without_loss_ < kRoundsWithoutLoss) {
    return;
  }
  rounds_without_loss_ = kLossNoted;
  if (log_ != nullptr && exchange_.rank() == 0) {
    log_->info(
        "local updates: the guard against a rising loss rests, because no rank has reported a loss so far; call "
        "report_loss() with the loss of each step");
  }
}

// `anchors` is true if anchors were compared, false for models.
Status LocalUpdater::handle_alarms(const std::vector<Alarm>& alarms, bool anchors, LocalOutcome& outcome) {
  round_.pull_every = 0;
  const Rank donor = healthy_rank(alarms, exchange_.size());
  std::vector<int> to_repair;
  bool rolled_back = false;
  for (const Alarm& alarm : alarms) {
    switch (alarm.action) {
      case Action::kResetRank:
        outcome.donor = donor;
        if (alarm.rank == exchange_.rank()) {
          take_anchor(outcome);
        }
        break;
      case Action::kPullBack:
        round_.pull_every = std::max<std::int64_t>(interval().steps / 4, 1);
        break;
      case Action::kRepair:
        to_repair.push_back(alarm.rank);
        break;
      case Action::kRollBack:
        SRT_TRY(roll_back(outcome));
        rolled_back = true;
        break;
      case Action::kEvict:
        return {Code::kUnsupported,
                "the guards of local updates require the job to continue without rank " + std::to_string(alarm.rank) +
                    ", which is not supported; use exclude or stop",
                {alarm.rank, {}}};
      case Action::kExclude:
      case Action::kHalve:
      case Action::kRetry:
      case Action::kPause:
      case Action::kStop:
        break;
    }
  }
  if (rolled_back) {
    // All ranks restart, because every optimizer state belongs to the replaced model.
    outcome.donor = -1;
  }
  return to_repair.empty() ? Status() : share_models(donor, to_repair, anchors, outcome);
}

// `before` and `encoding`: the mode before the decision, and the encoding of its merges.
Status LocalUpdater::follow_mode(Mode before, std::int64_t encoding, LocalOutcome& outcome) {
  const Mode now = interval().mode;
  if (now == Mode::kFailed) {
    return {Code::kMismatch, "the guards of local updates end the training (" +
                                 std::string(reason_name(interval().reason)) +
                                 "): ranks differ, and no majority agrees. Go back to the last checkpoint"};
  }
  if (now == Mode::kDrain) {
    return drain_now(encoding, outcome);
  }
  if (now == Mode::kLocal && before == Mode::kSync) {
    SRT_TRY(enter_local(outcome));
  }
  outcome.equalize_optimizer = outcome.equalize_optimizer || (now == Mode::kSync && before != Mode::kSync);
  begin_round(step_);
  return {};
}

}  // namespace sirtaki::local_updates
