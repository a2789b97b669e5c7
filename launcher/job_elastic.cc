// Elastic jobs in Job: the coordinator decides whether the others go on without a lost rank.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "launcher/job.h"
#include "launcher/process/processes.h"

namespace sirtaki::launcher {

void Job::on_epoch() {
  verdict_.left_first.reset();
  const std::string loss = std::exchange(growth_.last_loss, {});
  if (!std::exchange(growth_.begun, true)) {
    update_places();
  } else if (!loss.empty()) {
    count_change(loss);
  }
}

// Counts a change of the ranks, and ends the job if there have been too many.
void Job::count_change(const std::string& why) {
  const auto limit = plan_.config->elastic.reset_limit;
  if (++growth_.changes > limit && limit >= 0 && phase_ == Phase::kRunning) {
    const std::string times = limit == 1 ? "once" : std::to_string(limit) + " times";
    fail_run({-1,
              "",
              "the ranks have changed more than " + times + " (elastic.reset_limit), for the last time because " + why,
              1,
              {}});
  }
}

void Job::on_survived(const hub::Survived& loss) {
  if (phase_ != Phase::kRunning) {
    return;
  }
  RankState& state = ranks_.at(static_cast<std::size_t>(loss.slot));
  state.lost = true;
  const std::string cause(loss.cause.text());
  // Output is tagged with the number at the start, which is not that of the last epoch after an earlier loss.
  const bool renumbered = !cause.starts_with("rank " + std::to_string(loss.slot) + " ");
  const std::string tag = renumbered ? " (output [" + std::to_string(loss.slot) + "])" : "";
  const bool at_end = loss.next == Epoch();
  growth_.last_loss = cause + tag;
  log(growth_.last_loss + "; " + (at_end ? "the job has come to its end" : loss.prospect));
  state.parted = loss.cause.code() == Code::kShutdown;
  if (state.parted && !state.exited) {
    set_timer(loss.slot, plan_.options.term_grace, [this, slot = loss.slot] { end_process(slot); });
  }
  if (!state.parted && !state.asked) {  // or somebody has wanted it to go
    const std::string& host = state.link->placement().host;
    const bool known = state.exited && !state.link->ended();  // else nobody has seen how the process ended
    Failure failure =
        known ? failure_of(loss.slot) : Failure{loss.slot, host, "lost: " + without_rank(cause, loss.slot), 1, {}};
    failure.exit_code = std::max(failure.exit_code, 1);
    verdict_.survived.push_back(std::move(failure));
  }
  if (!at_end) {
    if (grows() && !state.parted) {
      end_process(loss.slot);  // before another process takes its place
    }
    if (plan_.by_host && !state.parted) {
      fail_host(loss.slot);
    }
    plan_restart(loss.slot);
  }
  check_finished();
}

// Kills the process of a rank that should have ended.
void Job::end_process(Rank rank) {
  const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  if (!state.exited && !state.link->ended()) {
    state.link->send(FrameType::kEndRank, encode(EndRank{rank, SIGKILL}));
  }
}

void Job::on_over(const Status& why) {
  growth_.over = true;
  if (phase_ != Phase::kRunning) {
    return;
  }
  if (why.code() == Code::kShutdown) {
    await_candidates();
    if (std::ranges::all_of(ranks_, &RankState::lost)) {
      log("all ranks had to leave, so none has come to the end of the program");
      exit_code_ = 128 + SIGTERM;
    }
    return check_finished();
  }
  judge_elastic_run();
  const bool ended = std::ranges::all_of(ranks_, [](const RankState& rank) { return rank.exited; });
  if (ended && !verdict_.failure && verdict_.survived.empty()) {
    return;  // programs that never met
  }
  log("no ranks go on: " + std::string(why.text()));
  if (verdict_.failure) {
    fail_run(*verdict_.failure);
  } else if (!verdict_.survived.empty()) {
    fail_run(verdict_.survived.front());
  } else if (verdict_.lost_first) {
    const auto& [rank, text] = *verdict_.lost_first;  // it may still run: a rank that is stopped, for example
    fail_run({rank, ranks_.at(static_cast<std::size_t>(rank)).link->placement().host, without_rank(text, rank), 1, {}});
  } else {
    fail_run({-1, "", std::string(why.text()), 1, {}});
  }
}

// A rank that was given up while it was stopped never ends by itself. One that has left does.
void Job::end_lost_ranks() {
  const bool others_ended = std::ranges::all_of(
      ranks_, [](const RankState& rank) { return rank.closed || (rank.lost && !rank.parted) || rank.link->ended(); });
  // A new process waits for the ranks that have ended. The coordinator is about to say why none of them goes on.
  const bool undecided = !growth_.over && std::ranges::any_of(ranks_, [](const RankState& rank) {
    return rank.fresh && !rank.exited && !rank.link->ended();
  });
  if (others_ended && !undecided && !kill_sent_) {
    begin_stop();
    kill_everything(SIGKILL);
  }
}

// The run is a success if the ranks that were not lost ended with exit code 0. Else the first loss is to blame.
void Job::judge_elastic_run() {
  if (verdict_.failure || verdict_.interrupted) {
    return;
  }
  const auto failed = [](const RankState& state) {
    return !state.lost && state.exited && !state.ended_by_us && state.wait_status != 0;
  };
  const auto first = std::ranges::find_if(ranks_, failed);
  if (first == ranks_.end()) {
    return;
  }
  Rank rank = static_cast<Rank>(first - ranks_.begin());
  if (verdict_.lost_first && failed(ranks_.at(static_cast<std::size_t>(verdict_.lost_first->first)))) {
    rank = verdict_.lost_first->first;
  }
  verdict_.failure = verdict_.survived.empty() ? failure_of(rank) : verdict_.survived.front();
  exit_code_ = verdict_.failure->exit_code;
}

}  // namespace sirtaki::launcher
