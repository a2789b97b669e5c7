// DefaultSession: the process's one session behind the C interface, the project's only mutable global.
//
// Never destroyed: threads of the caller may still be inside a call while the process ends. A forked child sees none.
// Threads: any. Opening and closing are serialised; looking the session up takes one short lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "adapters/c/meeting_point.h"
#include "adapters/c/sirtaki.h"
#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/engine/session/session.h"

namespace sirtaki::adapters {

// Polled while a call blocks.
struct Interrupt {
  sirtaki_interrupt_fn function = nullptr;
  void* context = nullptr;

  bool raised() const { return function != nullptr && function(context) != 0; }
};

// One session from init to shutdown. Ids given out carry `generation`, so that one from before a re-initialisation is
// recognised.
struct Active {
  std::unique_ptr<engine::Session> session;
  std::uint16_t generation = 1;
  bool homogeneous = true;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;  // of this rank's host among those that have a rank with the same local rank
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
  // As sirtaki_host().
  Status host(int size, const std::string& bind_address, std::uint16_t& port, std::string& secret_hex);

  // nullptr when there is none, or in a forked child.
  std::shared_ptr<Active> active() const;
  // The same, with the error that every call answers then.
  Result<std::shared_ptr<Active>> need() const;
  // The session a request or stream belongs to: `generation` must be the current one.
  Result<std::shared_ptr<Active>> need(std::uint16_t generation) const;
  // Options of the session, else those that init() without arguments would take.
  Result<std::string> options_json() const;
  // As sirtaki_nccl_version(); kUnavailable or kUnsupported, with the reason, where it says 0.
  Result<int> nccl_version() const;

  // A result that was handed out keeps its memory, through shutdown, until it is released.
  void pin(sirtaki_request request, std::shared_ptr<Active> owner);
  std::shared_ptr<Active> unpin(sirtaki_request request);

 private:
  DefaultSession();
  static void end_of_process();

  std::atomic<bool> forked_{false};
  std::mutex life_mutex_;  // serialises init, shutdown, host; guards meeting_point_, generation_, grace_
  MeetingPoint meeting_point_;
  std::uint16_t generation_ = 0;
  Duration grace_{};
  mutable std::mutex mutex_;  // guards what is below; never held while blocking
  std::shared_ptr<Active> active_;
  std::unordered_map<sirtaki_request, std::shared_ptr<Active>> pinned_;
};

}  // namespace sirtaki::adapters
