// RankProcesses: the rank processes of one host, with their output pipes and exit statuses.
//
// Owned by the agent; one thread, the thread of its loop. Starts, forwards, reports and ends; decisions about the job
// are made by the launcher. Output is read only against credit (agent_protocol.h).
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "launcher/process/processes.h"
#include "launcher/process/spawn.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki::launcher {

class RankProcesses {
 public:
  using Send = std::function<void(FrameType, ConstBytes)>;

  // `open_files`: limit of descriptors for each rank; see SpawnSpec.
  RankProcesses(boost::asio::io_context& io, Environment environment, rlim_t open_files, Send send);
  ~RankProcesses();

  // Starts the ranks in order, except those that run. The first failure is reported with kSpawnFailed, and no further
  // rank is started.
  void spawn_all(const Spawn& request);
  // Sends SIGKILL to all processes of a rank, or SIGTERM as a notice to those to which terminate() sends it.
  void end(const EndRank& request);
  // Reports the end of a child of this process. Ignores children that are not ranks.
  void on_child_exit(pid_t pid, int wait_status);
  void add_credit(std::uint64_t bytes);
  // Sends SIGTERM to every live rank: to the program of a rank that handles it (handlers.h), else to all its processes.
  void terminate();
  // Returns whether a live rank handles the SIGTERM of terminate().
  bool ending_in_order() const;
  // Sends `signal_number` (SIGUSR1, SIGUSR2) to the program of every live rank that handles or ignores it; returns the
  // other ranks.
  std::vector<Rank> pass_on(int signal_number);
  bool all_exited() const;
  // Returns whether all ranks have exited and their output has ended.
  bool all_closed() const;

 private:
  struct OutputPipe {
    OutputPipe(boost::asio::io_context& io, FileDescriptor fd) : in(io, fd.release()) {}
    boost::asio::posix::stream_descriptor in;
    OutputStream stream = OutputStream::kStdout;
    bool waiting = false;  // credit is missing
    std::array<std::byte, std::size_t{32} << 10> buffer{};
  };
  struct RankProcess {
    explicit RankProcess(boost::asio::io_context& io) : linger(io) {}
    Rank rank = -1;
    pid_t pid = -1;
    bool exited = false;
    bool closed = false;
    bool handles_term = false;  // set by terminate()
    std::array<std::unique_ptr<OutputPipe>, 2> pipes;
    boost::asio::steady_timer linger;  // runs while a process that the rank left behind holds its output
  };

  bool spawn_one(const Spawn& request, std::size_t index);
  std::vector<std::string> rank_environment(const Spawn& request, std::size_t index, int secret_fd) const;
  using SendTerm = void(pid_t);
  void terminate(RankProcess& process, const std::vector<ProcessInfo>& all, SendTerm* send);
  void read_output(RankProcess& process, OutputPipe& pipe);
  void end_pipe(RankProcess& process, OutputPipe& pipe);
  void check_closed(RankProcess& process);
  void end_leftovers(RankProcess& process, int signal_number);

  boost::asio::io_context& io_;
  const Environment environment_;
  const rlim_t open_files_;
  const Send send_;
  FileDescriptor secret_;  // the job's secret; a fallback for ranks whose inherited descriptor a wrapper closed
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::uint64_t credit_ = kInitialCredit;
};

}  // namespace sirtaki::launcher
