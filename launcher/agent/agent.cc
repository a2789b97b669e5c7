#include "launcher/agent/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

#include "launcher/agent/agent_protocol.h"
#include "launcher/agent/agent_ranks.h"
#include "launcher/agent/channel.h"
#include "launcher/agent/host_facts.h"
#include "launcher/agent/supervisor.h"
#include "launcher/process/descriptors.h"
#include "launcher/process/processes.h"
#include "runtime/base/config/config_load.h"
#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr auto kKillRound = std::chrono::milliseconds(10);
// A cut connection need not end stdin, so silence counts as the end; the launcher sends a frame every 2 s.
constexpr auto kSilenceLimit = std::chrono::seconds(30);
// Time in which the ranks of a lost launcher may end by themselves. Those in elastic.run() write their last commit.
constexpr auto kLossGrace = std::chrono::seconds(2);

class Agent {
 public:
  // `joined`: see run_joined_agent(); else over stdin and stdout.
  Agent(ChannelEnds ends, bool joined);
  AgentEnd run();

 private:
  void on_frame(const Frame& frame);
  void on_end();
  void end_ranks();
  void wait_for_signal();
  void reap();
  void probe(ConstBytes payload);
  void spawn(ConstBytes payload);
  void end_rank(ConstBytes payload);
  void pass_on(ConstBytes payload);
  void kill_ranks(ConstBytes payload);
  void tell(ConstBytes payload);
  void leave(int signal_number);
  void stand_still();
  void go_on();
  void say(const std::string& text) const;
  void terminate();
  void kill_all_now();
  void leave_if_signalled();
  void watch_silence();
  void finish();
  void protocol_error(const Status& status);

  const Environment environment_;
  const bool joined_;
  const Hello hello_;
  asio::io_context io_;
  asio::signal_set signals_;
  asio::steady_timer kill_timer_;
  asio::steady_timer silence_;
  FrameChannel channel_;
  RankProcesses ranks_;
  Duration term_grace_{};
  bool terminating_ = false;      // the ranks have received their SIGTERM
  bool by_signal_ = false;        // ... because this process has got it
  bool paused_ = false;           // the job is stopped, and its launcher is silent
  bool ending_ = false;           // the launcher is gone
  bool lost_ = false;             // ... before the host has left the job
  bool leaving_ = false;          // the user has asked for it
  bool broken_ = false;           // the launcher has sent what this agent does not understand
  std::optional<int> exit_code_;  // known once the launcher has said its last word
};

Hello hello_of(const Environment& environment, const ChannelEnds& ends, bool joined) {
  Hello hello = describe_host(environment);
  if (joined) {
    hello.launcher_address = rendezvous::remote_address_of(ends.in.get()).host();
  }
  return hello;
}

Agent::Agent(ChannelEnds ends, bool joined)
    : environment_(process_environment()),
      joined_(joined),
      hello_(hello_of(environment_, ends, joined)),
      signals_(io_, SIGCHLD, SIGTERM, SIGHUP),
      kill_timer_(io_),
      silence_(io_),
      channel_(io_, std::move(ends), false,
               {[this](const Frame& frame) { on_frame(frame); },
                [this](const Status& status) {
                  broken_ = status.code() == Code::kCorrupt;
                  on_end();
                }}),
      ranks_(io_, environment_, raise_open_files(), [this](FrameType type, ConstBytes payload) {
        channel_.send(type, payload);
        leave_if_signalled();
      }) {
  signals_.add(SIGINT);
  if (joined_) {
    signals_.add(SIGQUIT);
  }
  if (joined_ && !is_ignored(SIGTSTP)) {
    signals_.add(SIGTSTP);
    signals_.add(SIGCONT);
  }
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, 0);
  dup2(null, 1);
  close(null);
}

AgentEnd Agent::run() {
  channel_.send_raw(kPreamble);
  channel_.send(FrameType::kHello, encode(hello_));
  channel_.start();
  wait_for_signal();
  watch_silence();
  io_.run();
  kill_descendants(kSweepLimit);
  if (!joined_) {
    return {0};
  }
  if (exit_code_) {
    return {*exit_code_};
  }
  if (!lost_) {
    say("this host has left the job");
  } else if (leaving_) {
    say("the connection to the launcher has ended before the ranks here had left");
  }
  return {lost_ ? 1 : 0, lost_ && !leaving_ && !broken_};
}

void Agent::watch_silence() {
  if (hello_.launcher_address.empty() || ending_) {
    return;  // it is on this host, or gone
  }
  if (paused_) {
    silence_.cancel();
    return;
  }
  silence_.expires_after(kSilenceLimit);
  silence_.async_wait([this](const error_code& error) {
    if (!error) {
      on_end();
    }
  });
}

void Agent::on_frame(const Frame& frame) {
  watch_silence();
  switch (frame.type) {
    case FrameType::kPing:
      channel_.send(FrameType::kPong, {});
      leave_if_signalled();
      return;
    case FrameType::kCredit:
      if (const auto credit = decode_credit(frame.payload)) {
        ranks_.add_credit(*credit);
      }
      return;
    case FrameType::kProbe:
      probe(frame.payload);
      return;
    case FrameType::kSpawn:
      spawn(frame.payload);
      return;
    case FrameType::kSignal:
      pass_on(frame.payload);
      return;
    case FrameType::kEndRank:
      end_rank(frame.payload);
      return;
    case FrameType::kKill:
      kill_ranks(frame.payload);
      return;
    case FrameType::kTell:
      tell(frame.payload);
      return;
    default:
      protocol_error(corrupt("frame type " + std::to_string(static_cast<int>(frame.type))));
  }
}

void Agent::protocol_error(const Status& status) {
  const std::string line = "sirtakirun agent: " + status.to_string() + "\n";
  [[maybe_unused]] const ssize_t written = write(2, line.data(), line.size());
  broken_ = true;
  on_end();
}

void Agent::probe(ConstBytes payload) {
  const auto request = decode_probe(payload);
  if (!request) {
    protocol_error(request.status());
    return;
  }
  channel_.send(FrameType::kProbed, encode(probe_endpoints(*request)));
}

void Agent::spawn(ConstBytes payload) {
  const auto request = decode_spawn(payload);
  if (!request) {
    protocol_error(request.status());
    return;
  }
  term_grace_ = std::chrono::milliseconds(request->term_grace_ms);
  if (terminating_) {
    const SpawnFailed refused{request->ranks.front(), 1, "the agent has got SIGTERM, and starts no ranks any more"};
    channel_.send(FrameType::kSpawnFailed, encode(refused));
    return;
  }
  ranks_.spawn_all(*request);
}

void Agent::end_rank(ConstBytes payload) {
  const auto request = decode_end_rank(payload);
  request ? ranks_.end(*request) : protocol_error(request.status());
}

void Agent::pass_on(ConstBytes payload) {
  const auto request = decode_signal(payload);
  if (!request) {
    protocol_error(request.status());
    return;
  }
  Signalled answer{request->signal, {}};
  if (request->signal == SIGSTOP || request->signal == SIGCONT) {
    paused_ = request->signal == SIGSTOP;
    stop_or_continue_descendants(request->signal);
    watch_silence();
  } else {
    answer.unhandled = ranks_.pass_on(request->signal);
  }
  channel_.send(FrameType::kSignalled, encode(answer));
}

void Agent::kill_ranks(ConstBytes payload) {
  const auto request = decode_kill(payload);
  if (!request) {
    protocol_error(request.status());
  } else if (request->signal == SIGKILL) {
    kill_all_now();
  } else {
    terminate();
  }
}

// Shows a line on the terminal of a host that has joined.
void Agent::say(const std::string& text) const {
  const std::string line = "sirtakirun: " + text + "\n";
  [[maybe_unused]] const ssize_t written = write(2, line.data(), line.size());
}

void Agent::tell(ConstBytes payload) {
  const auto message = decode_tell(payload);
  if (!message) {
    return protocol_error(message.status());
  }
  say(message->text);
  if (message->exit_code >= 0) {
    exit_code_ = message->exit_code;
  }
}

// Asks the launcher to let this host go; it tells the ranks to leave. The signal may come several times: schedulers
// send it to all processes, and `timeout` twice. Only Ctrl-C again is the user's impatience.
void Agent::leave(int signal_number) {
  const bool again = std::exchange(leaving_, true);
  if (signal_number == SIGQUIT || (again && signal_number == SIGINT)) {
    say("ending the ranks here at once");
    exit_code_ = 128 + signal_number;
    return finish();
  }
  if (!again && !ending_) {
    say("this host leaves the job: its ranks leave at their next commit (Ctrl-C again: they are ended at once)");
    channel_.send(FrameType::kLeave, {});
  }
}

// Ctrl-Z: stops the ranks here first, since nobody could once this process is stopped. Its supervisor follows. The
// others wait for the ranks as for any silent ones.
void Agent::stand_still() {
  say("this host stands still; the job goes on without its ranks unless it is continued soon (elastic.silence)");
  stop_or_continue_descendants(SIGSTOP);
  raise(SIGSTOP);
}

void Agent::go_on() {
  if (!paused_) {
    stop_or_continue_descendants(SIGCONT);
  }
  watch_silence();  // what the launcher has sent meanwhile is yet to be read
}

// Sends the ranks one SIGTERM and starts one grace period, however often the end is requested.
void Agent::terminate() {
  if (terminating_) {
    return;
  }
  terminating_ = true;
  ranks_.terminate();
  if (!ranks_.ending_in_order()) {
    kill_all_now();
    return;
  }
  kill_timer_.expires_after(term_grace_);
  kill_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      kill_all_now();
    }
  });
}

void Agent::kill_all_now() {
  if (kill_round() == 0) {
    return;
  }
  kill_timer_.expires_after(kKillRound);
  kill_timer_.async_wait([this](const error_code& error) {
    if (!error) {
      kill_all_now();
    }
  });
}

// An agent that has got SIGTERM starts no ranks any more, so when its ranks have ended, the launcher has to learn that
// this host is gone. It notices the end of the writing side, unless a wrapper of the agent holds that: then at the end
// of the agent, which comes after one of its pings.
void Agent::leave_if_signalled() {
  if (by_signal_ && ranks_.all_closed()) {
    channel_.finish_writing();
    channel_.queued() == 0 ? finish() : void();
  }
}

void Agent::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) {
      return;
    }
    if (number == SIGCHLD) {
      reap();
    } else if (number == SIGTSTP) {
      stand_still();
    } else if (number == SIGCONT) {
      go_on();
    } else if (joined_) {
      leave(number);
    } else if (ranks_.all_exited()) {
      on_end();
    } else {
      by_signal_ = true;
      terminate();  // continues to serve the launcher until all that the ranks have written is sent
    }
    wait_for_signal();
  });
}

void Agent::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    ranks_.on_child_exit(pid, status);
  }
  if (ending_ && ranks_.all_exited()) {
    finish();
  } else if (terminating_ && !ranks_.ending_in_order()) {
    kill_all_now();  // no process that is left handles SIGTERM
  }
}

void Agent::on_end() {
  if (ending_) {
    return;
  }
  ending_ = true;
  lost_ = !leaving_ || !ranks_.all_exited();
  if (ranks_.all_exited()) {
    finish();
    return;
  }
  if (!joined_ || terminating_) {
    return end_ranks();
  }
  if (paused_) {
    stop_or_continue_descendants(SIGCONT);  // ranks that stand still write nothing
    paused_ = false;
  }
  silence_.expires_after(kLossGrace);
  silence_.async_wait([this](const error_code& error) {
    if (!error) {
      end_ranks();
    }
  });
}

void Agent::end_ranks() {
  terminate();
  // A process that cannot be killed (blocked on a dead disk) must not delay the end for ever.
  silence_.expires_after(term_grace_ + kSweepLimit);
  silence_.async_wait([this](const error_code& error) {
    if (!error) {
      finish();
    }
  });
}

void Agent::finish() {
  io_.stop();
}

AgentEnd run_supervised(ChannelEnds ends, bool joined) {
  const auto release = [&ends] { ends = {}; };  // the agent alone holds the connection
  return supervise(joined, release, [&] { return Agent(std::move(ends), joined).run(); });
}

}  // namespace

int run_agent() {
  ChannelEnds ends;
  ends.in = FileDescriptor(fcntl(0, F_DUPFD_CLOEXEC, 3));
  ends.out = FileDescriptor(fcntl(1, F_DUPFD_CLOEXEC, 3));
  return run_supervised(std::move(ends), false).exit_code;
}

AgentEnd run_joined_agent(ChannelEnds ends) {
  return run_supervised(std::move(ends), true);
}

}  // namespace sirtaki::launcher
