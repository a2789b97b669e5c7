// MeetingPoint: finds the address at which the ranks of a job meet, and hosts the coordinator if no other process does.
//
// Owned by: DefaultSession, for the life of the process, so that the coordinator survives re-initialisation.
// Threads: one at a time (the owner's lock). Secrets stay in memory or in files of mode 0600.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/config/config.h"
#include "runtime/base/config/job_env.h"
#include "runtime/base/status.h"
#include "runtime/base/task.h"
#include "runtime/engine/session/session.h"
#include "runtime/hub/coordinator_server.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::adapters {

// The job as a program describes it in sirtaki_init_args.
struct GivenJob {
  Rank rank = 0;
  int size = 0;  // 0: the program describes no job
  std::string rendezvous;
  std::string secret_hex;
};

class MeetingPoint {
 public:
  // Starts the coordinator, unless it already runs for the same number of ranks. A `ports` of zeros means any port.
  Status host(int size, const std::string& bind_address, PortRange ports, const Config& config);
  std::uint16_t port() const { return hub_ ? hub_->port() : std::uint16_t{0}; }
  const rendezvous::Secret& secret() const { return secret_; }

  // Returns rank, size, address and secret from `given`, else from the options, else from `environment`. Hosts the
  // coordinator if this is rank 0 of a job without one. Errors name the option to set. For `interrupted` see
  // await_meeting().
  Result<engine::JobSpec> find(const Config& config, const Environment& environment, const GivenJob& given,
                               const std::function<bool()>& interrupted);

  // Waits at most `grace` until the other ranks have left, then removes the meeting file. Call it as the process ends.
  void end(Duration grace);

 private:
  Result<engine::JobSpec> meet_hosted(const Config& config, const JobEnv& job);
  Result<engine::JobSpec> meet_on_one_host(const Config& config, const JobEnv& job,
                                           const std::function<bool()>& interrupted);
  Result<rendezvous::Secret> configured_secret(const Config& config);

  std::unique_ptr<hub::CoordinatorServer> hub_;
  int hub_size_ = 0;
  rendezvous::Secret secret_;                    // secret of hub_
  std::optional<rendezvous::Secret> fd_secret_;  // kept, since a descriptor can be read only once
  std::string meeting_file_;                     // removed by end(); empty if no file was written
};

// Splits "host:port" or "[v6]:port" into both parts.
Result<std::pair<std::string, std::uint16_t>> split_endpoint(const std::string& endpoint);

}  // namespace sirtaki::adapters
