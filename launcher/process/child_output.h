// ChildOutput: one run of a command as a child of this process, with a deadline, and the text that it writes.
//
// One thread, the thread of the loop, which never waits for the child.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "launcher/process/spawn.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

class ChildOutput {
 public:
  static constexpr std::size_t kMostText = std::size_t{1} << 20;  // that is kept of each stream; the rest is dropped
  struct End {
    bool late = false;  // it was ended at its deadline
    int wait_status = 0;
    std::array<std::string, 2> texts;  // standard output and standard error
  };

  explicit ChildOutput(boost::asio::io_context& io) : io_(io) {}
  // Ends the command, and the processes that it has started, if it runs. `on_end` does not fire then.
  ~ChildOutput();

  // Starts the command, and ends it after `patience`. `on_end` fires when it has ended, and may destroy this object.
  // Call it once.
  Status start(SpawnSpec spec, Duration patience, std::function<void(const End&)> on_end);
  // Returns whether this process is the command, which runs.
  bool runs(pid_t pid) const;
  // Reports the end of a child of this process. Ignores other processes than the command.
  void on_child_exit(pid_t pid, int wait_status);

 private:
  struct Run;
  static void read(const std::shared_ptr<Run>& run, std::size_t which);
  static bool drain(Run& run, std::size_t which);

  boost::asio::io_context& io_;
  std::shared_ptr<Run> run_;  // null when no command runs; handlers of its pipes may outlive it here
};

}  // namespace sirtaki::launcher
