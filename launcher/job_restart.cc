// Elastic jobs that grow: lost ranks are started again on their hosts, and others in vacant places. They join when the
// other ranks admit them.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "launcher/job.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki::launcher {

using boost::system::error_code;

namespace {

// A process that needs longer to come to init() is named to the user.
constexpr Duration kSilentStart = std::chrono::minutes(1);

std::string why_not_again(std::int64_t most, int failures) {
  if (most == 0) {
    return "elastic.restarts is 0";
  }
  const std::string last = failures == 1 ? "process has" : std::to_string(failures) + " processes have";
  return "its last " + last + " not lasted for a minute (elastic.restarts); its own output may say why";
}

}  // namespace

void Job::on_new_rank(const hub::NewRank& rank) {
  using Stage = hub::NewRank::Stage;
  RankState& state = ranks_.at(static_cast<std::size_t>(rank.slot));
  switch (rank.stage) {
    case Stage::kWaits:
      if (state.fresh && !state.exited) {  // or the process has ended meanwhile, and another start is planned
        state.came = true;
        state.timer.reset();
        growth_.over ? await_candidates() : tell_spares();
      }
      return;
    case Stage::kJoined:
      return on_joined(rank);
    case Stage::kHasState:
      if (!state.lost) {
        state.member_since = std::chrono::steady_clock::now();
        update_places();  // another one may have waited to leave until this one has the state
      }
      return;
    case Stage::kLost:
      // Another process may have the place by now, which has not come to the coordinator.
      if (state.fresh && state.came && !state.exited) {  // it may be about to end by itself, and then tells why
        set_timer(rank.slot, plan_.options.failure_grace,
                  [this, rank] { end_fresh(rank.slot, rank.text + "; it has not joined yet"); });
      }
      return;
  }
}

// Ends a process that was started again and has not joined, so that another one can take its place. Nothing else would:
// the other ranks do not miss it.
void Job::end_fresh(Rank rank, const std::string& why) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  if (!state.fresh || state.exited || state.link->ended() || phase_ != Phase::kRunning || growth_.over) {
    return;
  }
  state.fresh = false;
  coordinator_->announce(rank, false);
  log(why + ", and is ended");
  state.link->send(FrameType::kEndRank, encode(EndRank{rank, SIGKILL}));
}

void Job::on_joined(const hub::NewRank& joined) {
  RankState& state = ranks_.at(static_cast<std::size_t>(joined.slot));
  state.lost = state.fresh = state.spare = false;
  // A later failure is not that of a loss which has healed.
  std::erase_if(verdict_.survived, [&](const Failure& failure) { return failure.rank == joined.slot; });
  if (phase_ == Phase::kRunning) {
    const bool renumbered = !joined.text.starts_with("rank " + std::to_string(joined.slot) + " ");
    const std::string tag = renumbered ? " (output [" + std::to_string(joined.slot) + "])" : "";
    log(joined.text + tag + " has joined; " + hub::go_on_text(joined.size, joined.epoch));
    tell_spares();
  }
  if (state.started_at == growth_.changes) {  // else this change has been counted, or a later one
    count_change("ranks have joined");
  }
}

// Returns whether there are as many ranks as may be: further processes are spares.
bool Job::is_full() const {
  return std::ranges::count(ranks_, false, &RankState::lost) >= plan_.most_ranks();
}

// Tells the user which processes wait until a rank is lost.
void Job::tell_spares() {
  for (Rank rank = 0; rank < plan_.places && is_full(); ++rank) {
    RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (state.fresh && state.came && !state.exited && !std::exchange(state.spare, true)) {
      log("rank " + std::to_string(rank) + " on " + state.link->placement().host + " waits as a spare");
    }
  }
}

// The job has come to its end. Processes that have waited to join know it, and end by themselves.
void Job::await_candidates() {
  for (Rank rank = 0; rank < plan_.places; ++rank) {
    RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (state.fresh && state.came && !state.exited && !std::exchange(state.parted, true)) {
      set_timer(rank, plan_.options.failure_grace, [this, rank] { end_process(rank); });
    }
  }
}

void Job::on_admits(bool admits) {
  growth_.admits = admits;
  start_due_ranks();
}

void Job::on_fresh_exit(Rank rank, const std::string& what) {
  if (ranks_.at(static_cast<std::size_t>(rank)).fresh && phase_ == Phase::kRunning && !growth_.over) {
    log("rank " + std::to_string(rank) + " ended before it had joined: " + what);
  }
}

// Called when a rank is lost and when its output has ended, which come in either order.
void Job::plan_restart(Rank rank) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  if (!grows() || phase_ != Phase::kRunning || growth_.over || !state.lost || !state.closed || state.settled) {
    return;
  }
  state.settled = true;
  state.fresh = state.spare = false;
  state.timer.reset();
  if (plan_.by_host && !state.parted && state.spawned) {  // a process that cannot be started has not failed
    fail_host(rank);
  }
  coordinator_->announce(rank, false);
  if (state.asked || state.noticed || (discovers() && state.link->ended())) {
    release(rank);
    return update_places();
  }
  if (state.parted) {
    return close_slot(rank);  // whoever told it to leave wants its place
  }
  if (state.link->ended()) {
    return leave_empty(rank, "its host is gone");
  }
  const auto now = std::chrono::steady_clock::now();
  const auto since = std::exchange(state.member_since, std::nullopt);
  const auto pause = growth_.restarts.next(rank, since ? Duration(now - *since) : Duration::zero());
  if (!pause) {
    return leave_empty(rank, why_not_again(plan_.config->elastic.restarts, growth_.restarts.failures(rank)));
  }
  if (!growth_.admits && !std::exchange(growth_.told, true)) {
    log("lost ranks are started again while the other ranks are in elastic.run(), which gives new ones the state");
  }
  set_timer(rank, *pause, [this, rank] {
    ranks_.at(static_cast<std::size_t>(rank)).due = true;
    start_due_ranks();
  });
}

// Calls `then` after a while, unless RankState::timer changes before.
void Job::set_timer(Rank rank, Duration pause, std::function<void()> then) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  state.timer = std::make_shared<boost::asio::steady_timer>(io_, pause);
  // The handler of a timer that has expired may be queued already when the timer is destroyed.
  const std::weak_ptr<boost::asio::steady_timer> timer = state.timer;
  state.timer->async_wait([timer, then = std::move(then)](const error_code& error) {
    if (!error && !timer.expired()) {
      then();
    }
  });
}

// The host of a rank is gone, to which another process would have come.
void Job::cancel_restart(Rank rank) {
  const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  if (phase_ == Phase::kRunning && !growth_.over && state.settled && (state.due || state.timer)) {
    discovers() ? vacate(rank) : leave_empty(rank, "its host is gone");
  }
}

void Job::leave_empty(Rank rank, const std::string& why) {
  close_slot(rank);
  if (ranks_.at(static_cast<std::size_t>(rank)).vacant) {
    log("rank " + std::to_string(rank) + " is not started again: " + why);
  }
}

void Job::start_due_ranks() {
  for (Rank rank = 0; rank < plan_.places; ++rank) {
    const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    const bool starts = growth_.admits && !growth_.over && phase_ == Phase::kRunning;
    if (state.due && starts && !state.link->ended()) {
      start_again(rank);
    }
  }
}

void Job::start_again(Rank rank) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  state.due = state.settled = state.spawned = state.exited = state.closed = state.left = false;
  state.came = state.spare = false;
  state.fresh = true;
  state.ended_by_us = state.noticed = false;
  state.wait_status = 0;
  state.started_at = growth_.changes;
  const std::string name = "rank " + std::to_string(rank);
  const std::string again = ++state.starts > 1 ? " (start " + std::to_string(state.starts) + ")" : "";
  log(name + " is started " + (again.empty() ? "on " : "again on ") + state.link->placement().host + again +
      (is_full() ? ", as a spare" : ""));
  coordinator_->announce(rank, true);
  send_spawn(*state.link, {rank});
  await_init(rank);
}

// Tells the user of a process that is on its way for long, because the others may wait for it, and ends it later.
void Job::await_init(Rank rank) {
  const Duration patience = plan_.config->elastic.join_timeout;
  const Duration silent = std::min(patience, kSilentStart);
  const std::string name = "rank " + std::to_string(rank);
  const auto give_up = [this, rank, name, patience] {
    end_fresh(rank, name + " has not come to init() within " + format_duration(patience) +
                        " of its start (elastic.join_timeout)");
  };
  if (patience == silent) {
    return set_timer(rank, patience, give_up);
  }
  set_timer(rank, silent, [this, rank, name, patience, silent, give_up] {
    const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (state.fresh && !state.exited && phase_ == Phase::kRunning && !growth_.over) {
      const std::string limit = format_duration(patience);
      log(name + " on " + state.link->placement().host + " has not come to init() yet; " +
          (is_full() ? "it is ended after " + limit : "commits may wait for it, for " + limit + " at most") +
          " (elastic.join_timeout)");
      set_timer(rank, patience - silent, give_up);
    }
  });
}

}  // namespace sirtaki::launcher
