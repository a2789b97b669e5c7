#include "launcher/job.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/process/descriptors.h"
#include "launcher/process/processes.h"

namespace sirtaki::launcher {

namespace {

// Bound of the terminal's backlog in bytes; above it, the ranks' output is not read.
constexpr std::size_t kMaxBacklog = std::size_t{1} << 20;

}  // namespace

Job::Job(JobPlan plan)
    : plan_(std::move(plan)),
      signals_(io_, SIGCHLD),
      phase_timer_(io_),
      ping_timer_(io_),
      output_(io_),
      ranks_(static_cast<std::size_t>(plan_.places)),
      started_(std::chrono::steady_clock::now()) {
  for (Rank rank = 0; rank < plan_.places; ++rank) {
    vacate(rank);
  }
}

// Their threads post to the loop, so they are destroyed first.
Job::~Job() {
  growth_.port.reset();
  coordinator_.reset();
}

int Job::run() {
  for (const ProcessInfo& info : descendants()) {
    spared_.insert(info.pid);
  }
  become_subreaper();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    // A signal that the user's shell ignores (nohup) stays ignored.
    if (!is_ignored(number)) {
      signals_.add(number);
    }
  }
  signal(SIGPIPE, SIG_IGN);
  open_files_ = raise_open_files();
  Status status = open_output();
  if (status.ok()) {
    status = check_descriptors();
  }
  if (status.ok()) {
    status = start_hub();
  }
  if (status.ok()) {
    status = open_join_port();
  }
  if (!status.ok()) {
    log(std::string(status.text()));
    output_.writer->finish(std::nullopt);
    return 1;
  }
  wait_for_signal();
  discovers() ? discover() : start_links();
  ping_links();
  io_.run();
  coordinator_.reset();
  kill_descendants(std::chrono::seconds(1), spared_);
  const auto patience = verdict_.interrupted ? std::optional<Duration>(std::chrono::seconds(1)) : std::nullopt;
  if (!output_.writer->finish(patience)) {
    _exit(exit_code_);  // nobody reads standard output, so the writer's thread blocks in write() and cannot be joined
  }
  return exit_code_;
}

// Runs before anything starts: without enough descriptors, ranks would fail one by one with misleading errors.
Status Job::check_descriptors() const {
  constexpr std::size_t kOwn = 24;
  constexpr std::size_t kEachAgent = 5;
  const auto ranks = static_cast<std::size_t>(plan_.places);
  const std::size_t agents = discovers() ? ranks : plan_.placements.size();
  return check_open_files(kOwn + ranks * (output_.files ? 3 : 1) + kEachAgent * agents,
                          "a job of " + std::to_string(ranks) + " ranks");
}

Job::RankState* Job::rank_state(const AgentLink& link, Rank rank) {
  if (rank < 0 || rank >= plan_.places || ranks_[static_cast<std::size_t>(rank)].link != &link) {
    return nullptr;
  }
  return &ranks_[static_cast<std::size_t>(rank)];
}

void Job::protocol_error(AgentLink& link, const Status& status) {
  link.cut();
  on_link_gone(link, corrupt("host " + link.placement().host + ": its agent sent an invalid frame (" +
                             std::string(status.text()) + ")"));
}

void Job::on_frame(AgentLink& link, const Frame& frame) {
  switch (frame.type) {
    case FrameType::kProbed:
      on_probed(link, frame.payload);
      return;
    case FrameType::kSpawned: {
      const Result<Spawned> message = decode_spawned(frame.payload);
      RankState* state = message ? rank_state(link, message->rank) : nullptr;
      if (state == nullptr) {
        protocol_error(link, message.status());
        return;
      }
      state->spawned = true;
      log_verbose("rank " + std::to_string(message->rank) + " on " + link.placement().host + ": pid " +
                  std::to_string(message->pid));
      return;
    }
    case FrameType::kSpawnFailed:
      on_spawn_failed(link, frame.payload);
      return;
    case FrameType::kOutput:
      on_output(link, frame.payload);
      return;
    case FrameType::kExited:
      on_exited(link, frame.payload);
      return;
    case FrameType::kClosed:
      on_closed(link, frame.payload);
      return;
    case FrameType::kSignalled:
      on_signalled(link, frame.payload);
      return;
    case FrameType::kLeave:
      on_leave(link);
      return;
    case FrameType::kPong:
      return;
    default:
      protocol_error(link, corrupt("frame type " + std::to_string(static_cast<int>(frame.type))));
  }
}

void Job::on_output(AgentLink& link, ConstBytes payload) {
  const Result<Output> output = decode_output(payload);
  if (!output || rank_state(link, output->rank) == nullptr) {
    protocol_error(link, output.status());
    return;
  }
  const std::string_view text(reinterpret_cast<const char*>(output->data.data()), output->data.size());
  if (output_.files) {
    if (const Status status = output_.files->write(output->rank, output->stream, text); !status.ok()) {
      log(std::string(status.text()) + "; its output goes to the terminal alone from here");
    }
  }
  output_.mux->feed(output->rank, output->stream, text);
  link.notes.uncredited += text.size();
  flush_later();
  return_credit();
}

void Job::return_credit() {
  if (output_.writer->backlog() > kMaxBacklog) {
    return;  // called again when the terminal has taken the whole backlog
  }
  for (const auto& link : links_) {
    const std::uint64_t bytes = std::exchange(link->notes.uncredited, 0);
    if (bytes > 0 && !link->ended()) {
      link->send(FrameType::kCredit, encode_credit(bytes));
    }
  }
}

void Job::on_exited(AgentLink& link, ConstBytes payload) {
  const Result<Exited> message = decode_exited(payload);
  RankState* state = message ? rank_state(link, message->rank) : nullptr;
  if (state == nullptr) {
    protocol_error(link, message.status());
    return;
  }
  state->exited = true;
  state->ended_by_us = kill_sent_;
  state->wait_status = message->wait_status;
  const std::string what = describe_wait_status(message->wait_status);
  coordinator_->report_exit(message->rank, what);
  log_verbose("rank " + std::to_string(message->rank) + " ended: " + what);
  on_fresh_exit(message->rank, what);
  // In an elastic job, the coordinator says what the end of a rank means that has not left in order.
  if (message->wait_status != 0 && phase_ == Phase::kRunning && (!elastic() || state->left)) {
    fail_run(verdict_.survived.empty() ? failure_of(message->rank) : verdict_.survived.front());
  }
}

Failure Job::failure_of(Rank rank) const {
  const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  const int status = state.wait_status;
  Failure failure{rank, state.link->placement().host, describe_wait_status(status), exit_code_of(status), {}};
  if (WIFSIGNALED(status)) {
    failure.signal = WTERMSIG(status);
  }
  return failure;
}

void Job::on_closed(AgentLink& link, ConstBytes payload) {
  const Result<Rank> rank = decode_rank(payload);
  RankState* state = rank ? rank_state(link, *rank) : nullptr;
  if (state == nullptr) {
    protocol_error(link, rank.status());
    return;
  }
  state->closed = true;
  output_.mux->finish(*rank);
  plan_restart(*rank);
  check_finished();
}

void Job::on_spawn_failed(AgentLink& link, ConstBytes payload) {
  const Result<SpawnFailed> message = decode_spawn_failed(payload);
  if (!message || rank_state(link, message->rank) == nullptr) {
    protocol_error(link, message.status());
    return;
  }
  if (phase_ != Phase::kRunning) {
    return;
  }
  log("host " + link.placement().host + ": " + message->error);
  if (RankState& state = ranks_.at(static_cast<std::size_t>(message->rank)); state.lost) {
    state.exited = state.closed = true;
    plan_restart(message->rank);
    return check_finished();
  }
  begin_stop();
  exit_code_ = message->exit_code;
  kill_everything(SIGTERM);
  check_finished();
}

void Job::on_rank_lost(Rank rank, const Status& cause) {
  if (phase_ == Phase::kRunning && !verdict_.lost_first) {
    verdict_.lost_first = {rank, std::string(cause.text())};
    // A rank that is stopped or cut off never ends by itself, and the other ranks may not fail because of it.
    lost_timer_.expires_after(plan_.options.failure_grace);
    lost_timer_.async_wait([this, rank](const boost::system::error_code& error) {
      if (!error && phase_ == Phase::kRunning) {
        fail_run({rank,
                  ranks_.at(static_cast<std::size_t>(rank)).link->placement().host,
                  without_rank(verdict_.lost_first->second, rank),
                  1,
                  {}});
      }
    });
  }
}

void Job::on_rank_left(Rank rank) {
  ranks_.at(static_cast<std::size_t>(rank)).left = true;
  growth_.over = true;
  await_candidates();
  if (phase_ == Phase::kRunning && !verdict_.left_first) {
    verdict_.left_first = rank;
  }
}

void Job::on_link_gone(AgentLink& link, const Status& status) {
  if (phase_ == Phase::kFinished) {
    check_links_ended();
    return;
  }
  const Placement& placement = link.placement();
  const bool counts = is_newest(link) && !link.finishing();
  if (phase_ == Phase::kStarting && discovers()) {
    const Status early = unavailable("host " + placement.host + ": its agent ended early");
    return counts ? leave_out(placement.host, status.ok() ? early : status) : void();
  }
  if (phase_ == Phase::kStarting || phase_ == Phase::kProbing) {
    link.notes.start_error = status.text();
    give_up_start();
    return;
  }
  const std::string why = status.ok() ? "its agent ended early" : std::string(status.text());
  std::optional<Rank> first;
  if (counts && link.joined()) {
    withdraw(link);
    if (ranks_of(link).empty()) {
      log(why);
    }
  } else if (counts) {
    discovers() ? rest_host(placement.host) : growth_.fleet.bar(placement.host, TimePoint::max(), why);
  }
  for (const Rank rank : ranks_of(link)) {
    RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (!state.exited) {
      first = first.value_or(rank);
      coordinator_->report_exit(rank, "lost with its host: " + why);
    }
    state.exited = true;
    state.closed = true;
    output_.mux->finish(rank);
    cancel_restart(rank);
    plan_restart(rank);
  }
  give_up_vacant();
  const bool nobody = std::ranges::all_of(ranks_, [](const RankState& rank) { return rank.exited; });
  if (first && phase_ == Phase::kRunning && (!elastic() || nobody)) {
    fail_run({*first, placement.host, "lost: " + why, 1, {}});
  }
  check_finished();
}

}  // namespace sirtaki::launcher
