// DeviceCollectives: collectives of device memory, queued on the device behind the writers of their input.
//
// The contract of collectives.h applies: Done runs when the device has finished the work, or never will; until then the
// buffers belong to the backend. Threads: as Collectives.
#pragma once

#include <utility>

#include "runtime/base/task.h"
#include "runtime/device/device_api.h"
#include "runtime/net/collectives/collectives.h"

namespace sirtaki::net {

// Ordering of an operation with other work on the device. The caller owns the event and keeps it until Done.
struct DeviceWork {
  // The device touches the buffers only after the recording of this event at the time of start_work(). Optional.
  device::Event ready;
  // Sums in place among the ranks of each host, although all ranks of the job start the operation. kUnsupported if the
  // ranks of a host do not form a group.
  bool on_host = false;
  // The next operation belongs to the same group as this one, so that a backend may launch them together: it has the
  // same on_host, and neither needs a result of the other. Equal on all ranks.
  bool more = false;
};

class DeviceCollectives : public Collectives {
 public:
  // Returns the error with which start_work() would reject these arguments.
  virtual Status check(const CollectiveArgs& args) const { return check_args(args, rank(), size()); }
  // Does the same, and checks `work`.
  virtual Status check_work(const CollectiveArgs& args, const DeviceWork& work) const {
    return work.on_host ? Status(Code::kUnsupported, "the ranks of a host do not form a group") : check(args);
  }
  // Starts an operation; see Collectives::start() for `args` and `done`.
  virtual void start_work(CollectiveArgs args, DeviceWork work, Done done) = 0;
  void start(CollectiveArgs args, Done done) override { start_work(std::move(args), {}, std::move(done)); }
};

}  // namespace sirtaki::net
