#include "launcher/agent/agent_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>

#include "launcher/agent/host_facts.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/hosts.h"
#include "launcher/process/descriptors.h"
#include "launcher/process/handlers.h"
#include "launcher/process/processes.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Processes that a rank leaves behind may still write its last lines (`tee`); after this time they are ended.
constexpr auto kLingerStep = std::chrono::milliseconds(1000);

// Sends the SIGTERM that ends a job. A rank of an elastic job takes another one, sent by kill(), for a notice.
void end_in_order(pid_t pid) {
  sigqueue(pid, SIGTERM, sigval{});
}

// Sends a notice that its receiver does not count: somebody else may have sent one before, and a second one acts.
void give_notice(pid_t pid) {
  sigval mark{};
  mark.sival_int = 1;  // adapters/python/sigterm.cc
  sigqueue(pid, SIGTERM, mark);
}

}  // namespace

RankProcesses::RankProcesses(asio::io_context& io, Environment environment, rlim_t open_files, Send send)
    : io_(io), environment_(std::move(environment)), open_files_(open_files), send_(std::move(send)) {}

RankProcesses::~RankProcesses() = default;

std::vector<std::string> RankProcesses::rank_environment(const Spawn& request, std::size_t index, int secret_fd) const {
  Environment env = environment_;
  // A job that is started from inside another must not inherit the numbers that it has there.
  std::erase_if(env, [](const auto& entry) { return describes_rank(entry.first); });
  for (const auto& [name, value] : request.env) {
    env[name] = value;
  }
  env.try_emplace("PYTHONUNBUFFERED", "1");
  env.try_emplace("OMP_NUM_THREADS", std::to_string(omp_threads(usable_cores(), request.most_ranks)));
  env["SIRTAKI_JOB_RENDEZVOUS"] = request.rendezvous;
  env["SIRTAKI_JOB_SECRET_FD"] = std::to_string(secret_fd);
  // This path is no file of a folder: it vanishes with this agent, and only this user can open it.
  env["SIRTAKI_JOB_SECRET_FILE"] = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(secret_.get());
  for (const auto& [name, value] : request.rank_env.at(index)) {
    env[name] = value;
  }
  if (env.contains("RANK")) {
    // The names of torchrun for the rendezvous, which has IPv6 addresses in brackets. The user may set others with -x.
    std::string address = request.rendezvous.substr(0, request.rendezvous.rfind(':'));
    std::erase_if(address, [](char c) { return c == '[' || c == ']'; });
    env.try_emplace("MASTER_ADDR", address);
    env.try_emplace("MASTER_PORT", request.rendezvous.substr(request.rendezvous.rfind(':') + 1));
  }
  std::vector<std::string> out;
  out.reserve(env.size());
  for (const auto& [name, value] : env) {
    out.push_back(name + "=" + value);
  }
  return out;
}

void RankProcesses::spawn_all(const Spawn& request) {
  constexpr std::size_t kOwn = 24;
  const std::size_t needed = kOwn + 2 * (ranks_.size() + request.ranks.size());
  Status status = check_open_files(needed, "starting " + std::to_string(request.ranks.size()) + " ranks");
  if (status.ok() && secret_.get() < 0) {
    Result<FileDescriptor> secret = memory_file(request.secret_hex);
    status = secret.status();
    secret_ = secret ? std::move(*secret) : FileDescriptor();
  }
  if (!status.ok()) {
    send_(FrameType::kSpawnFailed, encode(SpawnFailed{request.ranks.front(), 1, std::string(status.text())}));
    return;
  }
  for (std::size_t index = 0; index < request.ranks.size(); ++index) {
    const auto same = [rank = request.ranks[index]](const auto& process) { return process->rank == rank; };
    if (std::ranges::any_of(ranks_, [&](const auto& process) { return same(process) && !process->closed; })) {
      continue;
    }
    std::erase_if(ranks_, same);
    if (!spawn_one(request, index)) {
      return;
    }
  }
}

void RankProcesses::end(const EndRank& request) {
  for (const auto& process : ranks_) {
    if (process->rank != request.rank || process->closed) {
      continue;
    }
    if (request.signal == SIGTERM) {
      terminate(*process, descendants(), give_notice);
      continue;
    }
    for (const ProcessInfo& info : session_members(process->pid)) {
      kill(info.pid, SIGKILL);
    }
  }
}

bool RankProcesses::spawn_one(const Spawn& request, std::size_t index) {
  const Rank rank = request.ranks.at(index);
  const auto refuse = [&](const SpawnError& error) {
    send_(FrameType::kSpawnFailed, encode(SpawnFailed{rank, error.exit_code, error.text}));
    return false;
  };
  Result<FileDescriptor> secret = memory_file(request.secret_hex);
  if (!secret) {
    return refuse({1, std::string(secret.status().text())});
  }
  SpawnSpec spec;
  spec.argv = request.argv;
  spec.env = rank_environment(request, index, secret->get());
  spec.cwd = request.cwd;
  spec.inherit_fd = secret->get();
  spec.open_files = open_files_;
  spec.death_signal = SIGKILL;
  SpawnError error;
  Result<ChildProcess> child = spawn(spec, &error);
  if (!child) {
    return refuse(error);
  }
  auto process = std::make_unique<RankProcess>(io_);
  process->rank = rank;
  process->pid = child->pid;
  process->pipes[0] = std::make_unique<OutputPipe>(io_, std::move(child->out));
  process->pipes[1] = std::make_unique<OutputPipe>(io_, std::move(child->err));
  process->pipes[1]->stream = OutputStream::kStderr;
  ranks_.push_back(std::move(process));
  send_(FrameType::kSpawned, encode(Spawned{rank, child->pid}));
  for (const auto& pipe : ranks_.back()->pipes) {
    read_output(*ranks_.back(), *pipe);
  }
  return true;
}

void RankProcesses::read_output(RankProcess& process, OutputPipe& pipe) {
  if (credit_ == 0) {
    pipe.waiting = true;
    return;
  }
  // Waits for readability first and takes the credit only when there is data: an idle pipe must not hold any credit.
  pipe.in.async_wait(asio::posix::stream_descriptor::wait_read, [this, &process, &pipe](const error_code& error) {
    if (error == asio::error::operation_aborted) {
      return;
    }
    if (credit_ == 0) {
      pipe.waiting = true;
      return;
    }
    error_code failed;
    const std::size_t limit = std::min<std::uint64_t>(credit_, pipe.buffer.size());
    const std::size_t size = pipe.in.read_some(asio::buffer(pipe.buffer.data(), limit), failed);
    if (failed == asio::error::would_block || failed == asio::error::try_again) {
      read_output(process, pipe);
      return;
    }
    if (failed) {
      end_pipe(process, pipe);
      return;
    }
    credit_ -= size;
    Output output{process.rank, pipe.stream, {pipe.buffer.begin(), pipe.buffer.begin() + static_cast<long>(size)}};
    send_(FrameType::kOutput, encode(output));
    read_output(process, pipe);
  });
}

void RankProcesses::add_credit(std::uint64_t bytes) {
  credit_ += bytes;
  for (const auto& process : ranks_) {
    for (const auto& pipe : process->pipes) {
      if (pipe->waiting) {
        pipe->waiting = false;
        read_output(*process, *pipe);
      }
    }
  }
}

void RankProcesses::end_pipe(RankProcess& process, OutputPipe& pipe) {
  error_code ignored;
  pipe.in.close(ignored);
  check_closed(process);
}

void RankProcesses::check_closed(RankProcess& process) {
  if (!process.closed && process.exited && !process.pipes[0]->in.is_open() && !process.pipes[1]->in.is_open()) {
    process.closed = true;
    process.linger.cancel();
    send_(FrameType::kClosed, encode_rank(process.rank));
  }
}

void RankProcesses::on_child_exit(pid_t pid, int wait_status) {
  for (const auto& process : ranks_) {
    if (process->pid != pid || process->exited) {
      continue;
    }
    process->exited = true;
    send_(FrameType::kExited, encode(Exited{process->rank, wait_status}));
    check_closed(*process);
    if (!process->closed) {
      end_leftovers(*process, SIGTERM);
    }
  }
}

void RankProcesses::end_leftovers(RankProcess& process, int signal_number) {
  process.linger.expires_after(kLingerStep);
  process.linger.async_wait([this, &process, signal_number](const error_code& error) {
    if (error || process.closed) {
      return;
    }
    const std::vector<ProcessInfo> left = session_members(process.pid);
    for (const ProcessInfo& info : left) {
      kill(info.pid, signal_number);
    }
    // No process of the session is left. Either another process inherited the open pipe, or credit is missing, and then
    // the remaining bytes are waited for.
    const bool paused = process.pipes[0]->waiting || process.pipes[1]->waiting;
    if (left.empty() && !paused && signal_number == SIGKILL) {
      for (const auto& pipe : process.pipes) {
        error_code ignored;
        pipe->in.close(ignored);
      }
      check_closed(process);
      return;
    }
    end_leftovers(process, SIGKILL);
  });
}

void RankProcesses::terminate() {
  const std::vector<ProcessInfo> all = descendants();
  for (const auto& process : ranks_) {
    terminate(*process, all, end_in_order);
  }
}

void RankProcesses::terminate(RankProcess& process, const std::vector<ProcessInfo>& all, SendTerm* send) {
  const std::vector<SessionProcess> session = session_processes(all, process.pid);
  const auto handler = process.exited ? std::nullopt : find_handler(session, process.pid, SIGTERM);
  // Behind a pipe or a subshell the program cannot be distinguished from its helpers: all get the signal and the grace.
  process.handles_term = handler || (!process.exited && std::ranges::any_of(session, [](const SessionProcess& one) {
                           return one.masks.handles(SIGTERM);
                         }));
  if (handler) {
    std::ranges::for_each(sigterm_targets(session, process.pid, *handler), send);
  } else {
    const bool by_group = !process.exited && !process.handles_term;
    if (by_group) {
      kill(-process.pid, SIGTERM);
    }
    for (const ProcessInfo& info : all) {
      if (info.session == process.pid && (!by_group || info.group != process.pid)) {
        send(info.pid);
      }
    }
  }
  // A stopped process cannot handle a signal.
  for (const SessionProcess& one : session) {
    kill(one.pid, SIGCONT);
  }
}

bool RankProcesses::ending_in_order() const {
  return std::ranges::any_of(ranks_, [](const auto& process) { return process->handles_term && !process->exited; });
}

std::vector<Rank> RankProcesses::pass_on(int signal_number) {
  const std::vector<ProcessInfo> all = descendants();
  std::vector<Rank> unhandled;
  for (const auto& process : ranks_) {
    if (process->exited) {
      continue;
    }
    const std::vector<SessionProcess> session = session_processes(all, process->pid);
    auto handler = find_handler(session, process->pid, signal_number);
    if (!handler) {
      // a wrapper that ignores the signal is not the program
      handler = find_handler(session, process->pid, signal_number, true);
    }
    if (handler) {
      kill(*handler, signal_number);
    } else {
      unhandled.push_back(process->rank);
    }
  }
  return unhandled;
}

bool RankProcesses::all_exited() const {
  return std::ranges::all_of(ranks_, [](const auto& process) { return process->exited; });
}

bool RankProcesses::all_closed() const {
  return std::ranges::all_of(ranks_, [](const auto& process) { return process->closed; });
}

}  // namespace sirtaki::launcher
