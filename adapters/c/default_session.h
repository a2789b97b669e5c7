// DefaultSession: the one session of a process behind the C interface, and the only mutable global of the project.
//
// Owned by: the process, and never destroyed, because threads may still be inside a call while the process ends. A
// forked child has no session. Threads: any. Opening and closing are serialised; a look-up takes one short lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "adapters/c/meeting_point.h"
#include "adapters/c/sirtaki.h"
#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/engine/session/session.h"

namespace sirtaki::adapters {

// Callback of the program that is polled while a call blocks.
struct Interrupt {
  sirtaki_interrupt_fn function = nullptr;
  void* context = nullptr;

  bool raised() const { return function != nullptr && function(context) != 0; }
};

// One session from init to shutdown, or to the next epoch of an elastic job. Ids of requests and streams carry
// `generation`, so that an id of an earlier session is detected.
struct Active {
  std::unique_ptr<engine::Session> session;
  std::uint16_t generation = 1;
  bool homogeneous = true;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;  // index of this host among the hosts that have this local rank
  int cross_size = 1;
};

struct InitRequest {
  std::string options_toml;
  Interrupt interrupt;
  GivenJob job;
};

class DefaultSession {
 public:
  static DefaultSession& instance();

  Status init(const InitRequest& request);
  Status shutdown();
  // Implements sirtaki_regroup_at(); 0: sirtaki_regroup().
  Status regroup(std::uint32_t change);
  // Implements sirtaki_admit().
  Status admit(bool admits);
  // Implements sirtaki_change_wanted().
  Result<engine::Growth> growth();
  // Implements sirtaki_stream_committed(). `generation` is that of the stream.
  Result<bool> committed(std::uint16_t generation, StreamId stream) const;
  // Implements sirtaki_host().
  Status host(int size, const std::string& bind_address, std::uint16_t& port, std::string& secret_hex);

  // Returns the open session; nullptr if none is open, and in a forked child.
  std::shared_ptr<Active> active() const;
  // Returns the open session, else the error for the caller.
  Result<std::shared_ptr<Active>> need() const;
  // Returns the session of a request or stream; an error unless `generation` is the current one.
  Result<std::shared_ptr<Active>> need(std::uint16_t generation) const;
  // Returns the options of the session; without one, the options that init() would use without arguments.
  Result<std::string> options_json() const;
  // Returns the options of the session, or those that a session without arguments would have.
  Result<std::shared_ptr<const Config>> config() const;
  // Implements sirtaki_nccl_version(); where it returns 0, the error is kUnavailable or kUnsupported with the reason.
  Result<int> nccl_version() const;

  // Keeps the memory of a returned result alive, also after shutdown(), until unpin().
  void pin(sirtaki_request request, std::shared_ptr<Active> owner);
  std::shared_ptr<Active> unpin(sirtaki_request request);

 private:
  DefaultSession();
  static void end_of_process();
  Status open_session();

  // The arguments with which the sessions of a job are opened. The line of an elastic job outlives its sessions.
  struct Opening {
    std::shared_ptr<const Config> config;
    engine::JobSpec job;
    Interrupt interrupt;
  };

  std::atomic<bool> forked_{false};
  // Serialises init, shutdown, regroup, host; guards meeting_point_, generation_, grace_, opening_.
  std::mutex life_mutex_;
  MeetingPoint meeting_point_;
  std::uint16_t generation_ = 0;
  Duration grace_{};
  Opening opening_;
  mutable std::mutex mutex_;  // guards active_, pinned_; never held while blocking
  std::shared_ptr<Active> active_;
  std::uint16_t regrouped_ = 0;   // generation before the last regroup(); guarded by mutex_
  std::set<StreamId> committed_;  // its streams whose step in progress counts; guarded by mutex_
  std::unordered_map<sirtaki_request, std::shared_ptr<Active>> pinned_;
};

}  // namespace sirtaki::adapters
