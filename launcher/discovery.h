// Discovery: runs the user's script that names the hosts of an elastic job, again and again.
//
// Owned by Job; one thread, the thread of its loop, which never waits for the script: that runs as a child process, and
// is ended when it takes too long.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/hosts.h"
#include "launcher/process/child_output.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct DiscoveryOptions {
  std::string script;                            // a command of the shell; empty: the hosts of a job are fixed
  int slots = 1;                                 // slots of a host that is named without a number
  Duration interval = std::chrono::seconds(1);   // from the end of a run to the next one
  Duration patience = std::chrono::seconds(30);  // time after which a run is ended
};

// Parses lines "name" or "name:slots"; blank lines are ignored, and so are lines that come again.
Result<std::vector<Host>> parse_discovered(std::string_view text, int slots);

class Discovery {
 public:
  struct Events {
    std::function<void(const std::vector<Host>&)> on_hosts;  // a run has succeeded
    std::function<void(const Status&)> on_failed;            // a run has failed, or has printed something else
  };
  Discovery(boost::asio::io_context& io, DiscoveryOptions options, std::vector<std::string> env, Events events);

  // Runs the script now, and again after each run.
  void start();
  // Ends a run that is in progress and starts no other one. No event fires from then on.
  void stop();
  // Reports the end of a child of this process. Ignores other processes than the script.
  void on_child_exit(pid_t pid, int wait_status);

 private:
  Result<std::vector<Host>> result_of(const ChildOutput::End& end) const;
  void report(const Result<std::vector<Host>>& result);

  boost::asio::io_context& io_;
  const DiscoveryOptions options_;
  const std::vector<std::string> env_;
  const Events events_;
  boost::asio::steady_timer timer_;   // runs to the next run
  std::unique_ptr<ChildOutput> run_;  // null between two runs
  bool stopped_ = false;
};

}  // namespace sirtaki::launcher
