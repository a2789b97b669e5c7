// DeviceCollectives: collectives of memory on a device, which are queued there behind what writes their input.
//
// For: whoever has gradients on a GPU. All that collectives.h says holds as well: Done comes when the device has done
// the work, or never will; until then the buffers belong to the backend.
// Threads: as Collectives.
#pragma once

#include <utility>

#include "runtime/base/task.h"
#include "runtime/device/device_api.h"
#include "runtime/net/collectives/collectives.h"

namespace sirtaki::net {

// What orders an operation with work of the device. Events are the caller's, who keeps them until Done.
struct DeviceWork {
  // The buffers are not touched before this, as last recorded when the operation was given in. None: at once.
  device::Event ready;
  // Recorded behind the operation, so that a stream of the caller's can wait for it while the host goes on. None: not.
  device::Event finished;
  // Called once `finished` is recorded: no stream waits for it before. Never where the operation fails earlier, never
  // after Done, never from inside start_work().
  Task queued;
  // Among the ranks of each host alone, though all ranks of the job start it: a sum in place. kUnsupported where these
  // are no group of their own.
  bool on_host = false;
};

class DeviceCollectives : public Collectives {
 public:
  // What start_work() would refuse for its arguments alone.
  virtual Status check(const CollectiveArgs& args) const { return check_args(args, rank(), size()); }
  // The same, and for where it is to be.
  virtual Status check_work(const CollectiveArgs& args, const DeviceWork& work) const {
    return work.on_host ? Status(Code::kUnsupported, "the ranks of a host are no group of their own") : check(args);
  }
  virtual void start_work(CollectiveArgs args, DeviceWork work, Done done) = 0;
  void start(CollectiveArgs args, Done done) override { start_work(std::move(args), {}, std::move(done)); }
};

}  // namespace sirtaki::net
