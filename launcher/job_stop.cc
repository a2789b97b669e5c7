// Second half of a Job: signals, failures, and a bounded end.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "launcher/check.h"
#include "launcher/job.h"
#include "launcher/process/processes.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki::launcher {

using boost::system::error_code;

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A run is over within 5 s of a failure or Ctrl-C if no rank handles SIGTERM: failure grace (at most 3 s) plus kSweep.
// Otherwise --term-grace is added.
constexpr auto kSweep = milliseconds(1000);
constexpr auto kPingInterval = seconds(2);
constexpr auto kFlushDelay = milliseconds(150);
constexpr auto kLinksEnd = milliseconds(1500);
constexpr auto kStopWait = milliseconds(1000);  // time in which all hosts confirm that their ranks are stopped

// Returns true for an agent that reads how the job has ended, and then ends. An agent that the launcher has started and
// that has not sent its hello has no ranks to end.
bool ends_itself(const std::shared_ptr<AgentLink>& link) {
  return link->state() == AgentLink::State::kReady || (link->joined() && !link->ended());
}

}  // namespace

void Job::log(const std::string& text) {
  output_.mux->own_line("sirtakirun: " + text);
}

void Job::log_verbose(const std::string& text) {
  if (plan_.options.verbose) {
    log(text);
  }
}

void Job::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) {
      return;
    }
    on_signal(number);
    wait_for_signal();
  });
}

void Job::on_signal(int number) {
  switch (number) {
    case SIGCHLD:
      reap_children();
      return;
    case SIGUSR1:
    case SIGUSR2:
      pass_on(number);
      return;
    case SIGTSTP:
      suspend();
      return;
    case SIGCONT:
      stopping_.clear();
      pass_on(number);
      return;
    default:
      interrupt(number);
  }
}

void Job::pass_on(int number) {
  for (const auto& link : links_) {
    if (link->state() == AgentLink::State::kReady) {
      link->send(FrameType::kSignal, encode(Signal{number}));
    }
  }
}

// Stops the ranks first: once this process is stopped, nobody can stop them.
void Job::suspend() {
  stopping_.clear();
  for (const auto& link : links_) {
    if (link->state() == AgentLink::State::kReady) {
      stopping_.insert(link.get());
    }
  }
  if (stopping_.empty()) {
    stop_here();
    return;
  }
  pass_on(SIGSTOP);
  suspend_timer_.expires_after(kStopWait);
  suspend_timer_.async_wait([this](const error_code& error) {
    if (!error && !stopping_.empty()) {
      stop_here();
    }
  });
}

// Stops this process with the default action, so that a shell that waits for it sees it stopped. SIGCONT ends the stop
// and is then handled like any other signal.
void Job::stop_here() {
  stopping_.clear();
  suspend_timer_.cancel();
  raise(SIGSTOP);
}

void Job::on_signalled(AgentLink& link, ConstBytes payload) {
  const Result<Signalled> message = decode_signalled(payload);
  if (!message) {
    protocol_error(link, message.status());
    return;
  }
  if (message->signal == SIGSTOP && stopping_.erase(&link) != 0 && stopping_.empty()) {
    stop_here();
  }
  std::string ranks;
  for (const Rank rank : message->unhandled) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!ranks.empty()) {
    const std::string name = message->signal == SIGUSR1   ? "SIGUSR1"
                             : message->signal == SIGUSR2 ? "SIGUSR2"
                                                          : "signal " + std::to_string(message->signal);
    log(name + " is not passed on to rank " + ranks + ", which does not handle it and would end");
  }
}

void Job::reap_children() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (std::size_t i = 0; i < links_.size(); ++i) {  // the end of one host may start the agent of another
      links_[i]->on_child_exit(pid, status);
    }
    if (growth_.script) {
      growth_.script->on_child_exit(pid, status);
    }
    const auto lookup =
        std::ranges::find_if(growth_.lookups, [pid](const auto& entry) { return entry.second->runs(pid); });
    if (lookup != growth_.lookups.end()) {
      lookup->second->on_child_exit(pid, status);
    }
  }
}

void Job::ping_links() {
  for (std::size_t i = 0; i < links_.size(); ++i) {  // the end of one host may start the agent of another
    AgentLink& link = *links_[i];
    if (!link.ping()) {
      link.cut();
      on_link_gone(link, unavailable("host " + link.placement().host + ": its agent does not answer any more"));
    }
  }
  forget_hosts();
  if (growth_.port && phase_ == Phase::kStarting) {
    call_absent_hosts();  // hosts of the command line that have rested
  } else if (growth_.port) {
    update_places();  // no script does so
  }
  ping_timer_.expires_after(kPingInterval);
  ping_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      ping_links();
    }
  });
}

// Shows text without a line end (prompts, progress dots) after a short delay.
void Job::flush_later() {
  if (output_.flush_pending || !output_.mux->pending()) {
    return;
  }
  output_.flush_pending = true;
  output_.flush_timer.expires_after(kFlushDelay);
  output_.flush_timer.async_wait([this](const error_code& error) {
    output_.flush_pending = false;
    if (error) {
      return;
    }
    // While the terminal is behind, the rest of a line may be waiting for credit.
    if (std::ranges::all_of(links_, [](const auto& link) { return link->notes.uncredited == 0; })) {
      output_.mux->flush();
    }
    flush_later();
  });
}

// The hosts count no more from here.
void Job::begin_stop() {
  phase_ = Phase::kStopping;
  if (growth_.script) {
    growth_.script->stop();
  }
  growth_.port.reset();
  growth_.lookups.clear();
}

void Job::fail_run(Failure failure) {
  begin_stop();
  const bool others = std::any_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) { return !rank.exited; });
  log(failure_line(failure) +
      (others ? "; the other ranks are ended in " + format_duration(plan_.options.failure_grace) + " at most, or " +
                    format_duration(plan_.options.term_grace) + " later if they handle SIGTERM"
              : ""));
  exit_code_ = failure.exit_code;
  verdict_.failure = std::move(failure);
  phase_timer_.expires_after(plan_.options.failure_grace);
  phase_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      kill_everything(SIGTERM);
    }
  });
  check_finished();
}

void Job::interrupt(int number) {
  if (phase_ == Phase::kFinished) {
    return;
  }
  if (phase_ == Phase::kStarting || phase_ == Phase::kProbing) {
    verdict_.interrupted = number;
    exit_code_ = 128 + number;
    log("interrupted; nothing was started");
    finish();
    return;
  }
  const bool again = verdict_.interrupted.has_value();
  if (again && number != SIGINT && number != SIGQUIT) {
    return;  // `timeout` and schedulers send SIGTERM twice; the promised grace stays
  }
  verdict_.interrupted = verdict_.interrupted.value_or(number);
  exit_code_ = verdict_.failure ? exit_code_ : 128 + *verdict_.interrupted;
  begin_stop();
  if (again || number == SIGQUIT) {
    log("ending everything now");
    kill_everything(SIGKILL);
    return;
  }
  if (number == SIGPIPE) {
    log("nobody reads the output any more; ending the ranks");
  } else {
    log("interrupted; ranks that handle SIGTERM have " + format_duration(plan_.options.term_grace) +
        " to end, others are ended at once (Ctrl-C again: all)");
  }
  kill_everything(SIGTERM);
}

void Job::kill_everything(int signal_number) {
  kill_sent_ = true;
  for (const auto& link : links_) {
    if (link->state() == AgentLink::State::kReady) {
      link->send(FrameType::kKill, encode(Kill{signal_number}));
    }
  }
  phase_timer_.expires_after((signal_number == SIGKILL ? Duration::zero() : plan_.options.term_grace) + kSweep);
  phase_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      log("some processes did not end in time; their hosts end them when they can");
      finish();
    }
  });
}

void Job::check_finished() {
  if (phase_ != Phase::kRunning && phase_ != Phase::kStopping) {
    return;
  }
  const bool stopping = phase_ == Phase::kStopping;
  const bool all_done = std::all_of(ranks_.begin(), ranks_.end(), [stopping](const RankState& rank) {
    return rank.closed || (stopping && !rank.spawned) || rank.link->ended();
  });
  if (all_done) {
    finish();
  } else if (!stopping && elastic()) {
    end_lost_ranks();
  }
}

void Job::finish() {
  begin_stop();
  phase_ = Phase::kFinished;
  if (links_finishing_) {
    return;
  }
  links_finishing_ = true;
  tell_end();
  for (const auto& link : links_) {
    ends_itself(link) ? link->finish() : link->cut();
  }
  phase_timer_.expires_after(kLinksEnd);
  phase_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      for (const auto& link : links_) {
        link->cut();
      }
      conclude();
    }
  });
  check_links_ended();
}

void Job::check_links_ended() {
  const bool all = std::ranges::none_of(links_, ends_itself);
  if (all && links_finishing_) {
    conclude();
  }
}

// A rank that the coordinator lost before any other failure is the cause, whichever process ended first. The same holds
// for a rank that left the job first and then failed: an exception ends its rank in order, and the other ranks fail
// because they miss it.
void Job::assign_blame() {
  if (elastic()) {
    judge_elastic_run();
    return;
  }
  if (verdict_.failure && !verdict_.lost_first && verdict_.left_first) {
    const RankState& left = ranks_.at(static_cast<std::size_t>(*verdict_.left_first));
    if (left.exited && left.wait_status != 0) {
      verdict_.lost_first = {*verdict_.left_first, "left the job"};
    }
  }
  if (!verdict_.failure || !verdict_.lost_first || verdict_.lost_first->first == verdict_.failure->rank) {
    return;
  }
  const auto& [rank, text] = *verdict_.lost_first;
  const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  Failure cause{rank, state.link->placement().host, without_rank(text, rank), exit_code_, {}};
  if (state.exited && !state.ended_by_us && state.wait_status == 0) {
    cause.what = "exit code 0, while the others still needed it";
  } else if (state.exited && !state.ended_by_us) {
    cause.what = describe_wait_status(state.wait_status);
    cause.exit_code = exit_code_of(state.wait_status);
    if (WIFSIGNALED(state.wait_status)) {
      cause.signal = WTERMSIG(state.wait_status);
    }
  }
  exit_code_ = cause.exit_code;
  verdict_.failure = std::move(cause);
}

void Job::conclude() {
  if (io_.stopped()) {
    return;
  }
  for (Rank rank = 0; rank < plan_.places; ++rank) {
    output_.mux->finish(rank);
  }
  assign_blame();
  if (verdict_.failure) {
    const Rank blamed = verdict_.failure->rank;
    const auto tail = blamed < 0 ? std::vector<std::string>() : output_.mux->tail(blamed);
    for (const std::string& line : failure_report(*verdict_.failure, tail)) {
      output_.mux->own_line(line);
    }
  } else if (exit_code_ == 0 && plan_.options.check) {
    if (links_.size() > 1) {
      output_.writer->write(OutputStream::kStdout, check_verdict(0, links_.size()));
    }
  } else if (exit_code_ == 0) {
    const auto elapsed = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started_);
    const auto ranks = std::ranges::count(ranks_, false, &RankState::lost);
    const auto spares = std::ranges::count(ranks_, true, &RankState::spare);
    log_verbose((ranks == plan_.most_ranks() ? "all " : "") + std::to_string(ranks) +
                " ranks ended with exit code 0 after " + format_duration(elapsed) +
                (spares == 0 ? "" : "; " + std::to_string(spares) + (spares == 1 ? " spare" : " spares") + " waited"));
  }
  io_.stop();
}

}  // namespace sirtaki::launcher
