#include "launcher/agent_ranks.h"

#include <signal.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>

#include "launcher/descriptors.h"
#include "launcher/environment.h"
#include "launcher/host_facts.h"
#include "launcher/hosts.h"
#include "launcher/processes.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// What a rank leaves behind may still write its last lines (`tee`); after this it is ended.
constexpr auto kLingerStep = std::chrono::milliseconds(1000);

}  // namespace

RankSet::RankSet(asio::io_context& io, Environment environment, Send send)
    : io_(io), environment_(std::move(environment)), send_(std::move(send)) {}

RankSet::~RankSet() = default;

std::vector<std::string> RankSet::rank_environment(const Spawn& request, Rank rank, int secret_fd) const {
  Environment env = environment_;
  // A job started from inside another must not inherit its place.
  std::erase_if(env, [](const auto& entry) { return is_place_in_job(entry.first); });
  for (const auto& [name, value] : request.env) {
    env[name] = value;
  }
  env.try_emplace("PYTHONUNBUFFERED", "1");
  env.try_emplace("OMP_NUM_THREADS", std::to_string(omp_threads(usable_cores(), request.ranks)));
  env["SIRTAKI_JOB_RANK"] = std::to_string(rank);
  env["SIRTAKI_JOB_SIZE"] = std::to_string(request.size);
  env["SIRTAKI_JOB_RENDEZVOUS"] = request.rendezvous;
  env["SIRTAKI_JOB_SECRET_FD"] = std::to_string(secret_fd);
  std::vector<std::string> out;
  out.reserve(env.size());
  for (const auto& [name, value] : env) {
    out.push_back(name + "=" + value);
  }
  return out;
}

void RankSet::spawn_all(const Spawn& request) {
  for (Rank rank = request.first_rank; rank < request.first_rank + request.ranks; ++rank) {
    if (!spawn_one(request, rank)) {
      return;
    }
  }
}

bool RankSet::spawn_one(const Spawn& request, Rank rank) {
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
  spec.env = rank_environment(request, rank, secret->get());
  spec.cwd = request.cwd;
  spec.inherit_fd = secret->get();
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
  process->pipes[1]->stream = Stream::kStderr;
  ranks_.push_back(std::move(process));
  send_(FrameType::kSpawned, encode(Spawned{rank, child->pid}));
  for (const auto& pipe : ranks_.back()->pipes) {
    read_output(*ranks_.back(), *pipe);
  }
  return true;
}

void RankSet::read_output(RankProcess& process, OutputPipe& pipe) {
  if (credit_ == 0) {
    pipe.waiting = true;
    return;
  }
  // Waiting first and taking the credit only when there is something to read: an idle pipe must not hold any.
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

void RankSet::add_credit(std::uint64_t bytes) {
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

void RankSet::end_pipe(RankProcess& process, OutputPipe& pipe) {
  error_code ignored;
  pipe.in.close(ignored);
  check_closed(process);
}

void RankSet::check_closed(RankProcess& process) {
  if (!process.closed && process.exited && !process.pipes[0]->in.is_open() && !process.pipes[1]->in.is_open()) {
    process.closed = true;
    process.linger.cancel();
    send_(FrameType::kClosed, encode_rank(process.rank));
  }
}

void RankSet::on_child_exit(pid_t pid, int wait_status) {
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

void RankSet::end_leftovers(RankProcess& process, int signal_number) {
  process.linger.expires_after(kLingerStep);
  process.linger.async_wait([this, &process, signal_number](const error_code& error) {
    if (error || process.closed) {
      return;
    }
    const std::vector<ProcessInfo> left = session_members(process.pid);
    for (const ProcessInfo& info : left) {
      kill(info.pid, signal_number);
    }
    // Nobody of the session is left, so what is still open was handed to somebody else; or credit is short, and then
    // the bytes are waited for.
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

void RankSet::signal_all(int signal_number) {
  for (const auto& process : ranks_) {
    if (!process->exited) {
      kill(-process->pid, signal_number);
    }
  }
  for (const ProcessInfo& info : descendants()) {
    for (const auto& process : ranks_) {
      if (info.session == process->pid && (process->exited || info.group != process->pid)) {
        kill(info.pid, signal_number);
      }
    }
  }
}

bool RankSet::all_exited() const {
  for (const auto& process : ranks_) {
    if (!process->exited) {
      return false;
    }
  }
  return true;
}

}  // namespace sirtaki::launcher
