// Teardown: ends communicators off the loop, because NCCL waits for the device in that call.
//
// ncclCommAbort and ncclCommDestroy synchronize with the stream of the communicator, which another communicator can
// block, so all of them must end side by side. Owner: NcclCollectives, tests. Thread: loop, destructor included.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/telemetry/log.h"
#include "runtime/base/types.h"
#include "runtime/device/device_api.h"
#include "runtime/net/device/nccl/nccl_api.h"

namespace sirtaki::net::nccl {

class Teardown {
 public:
  using End = Outcome (*)(CommHandle comm);  // Api::comm_abort or Api::comm_destroy

  Teardown() = default;
  Teardown(const Teardown&) = delete;
  Teardown& operator=(const Teardown&) = delete;
  virtual ~Teardown() = default;

  // Calls `end` with `comm`, which nothing may use any more. Does not wait for the call, and keeps `slot` until it
  // returns: NCCL writes the handle to the place that it was given once more, when the connection is made or fails.
  virtual void start(End end, CommHandle comm, std::shared_ptr<CommHandle> slot) = 0;
  // Returns true if all calls have returned. A call that could not be made never does.
  virtual bool done() = 0;
};

// Makes each call on a thread of its own.
class ThreadTeardown final : public Teardown {
 public:
  // `device` and `log` must outlive this; threads enter the device inside start(), and use neither later.
  ThreadTeardown(device::DeviceApi& device, Logger& log, Duration timeout)
      : device_(device), log_(log), timeout_(timeout) {}
  // Waits for each call up to `timeout` after its start. Leaves a later one behind on its thread, which owns all that
  // it uses; the library of NCCL is never unloaded.
  ~ThreadTeardown() override;

  void start(End end, CommHandle comm, std::shared_ptr<CommHandle> slot) override;
  bool done() override;

 private:
  struct Call;
  struct Running {
    std::thread thread;
    std::shared_ptr<Call> call;
    TimePoint deadline;
  };

  device::DeviceApi& device_;
  Logger& log_;
  const Duration timeout_;
  std::vector<Running> running_;
  bool left_behind_ = false;  // a communicator without a thread to end it
};

}  // namespace sirtaki::net::nccl
