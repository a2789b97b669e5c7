// DeviceCollectives: collectives of device memory, queued on the device behind the writers of their input.
//
// The contract of collectives.h applies: Done runs when the device has finished the work, or never will; until then the
// buffers belong to the backend. Threads: as Collectives.
#pragma once

#include <utility>

#include "runtime/base/task.h"
#include "runtime/device/device_api.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/device/launch_set.h"

namespace sirtaki::net {

// Ordering of an operation with other work on the device. The caller owns the event and keeps it until Done.
struct DeviceWork {
  // The device touches the buffers only after the recording of this event at the time of start_work(). Optional.
  device::Event ready;
  // Sums in place among the ranks of each host, although all ranks of the job start the operation. kUnsupported if the
  // ranks of a host do not form a group.
  bool on_host = false;
  // The next operation belongs to the same group as this one, so that a backend may launch them together: it has the
  // same ranks, and neither needs a result of the other. Equal on all ranks.
  bool more = false;
  // The job or a process set (SetCollectives), whose ranks the arguments are about.
  LaunchSet set = kJobSet;

  // Returns the set of ranks that launch this together.
  LaunchSet launch_set() const { return on_host ? kHostsSet : set; }
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

// Device collectives of the job and of process sets, each with connections of its own. Operations of all sets run in
// the order of their start.
class SetCollectives : public DeviceCollectives {
 public:
  // Makes the connections of a set, in the order of operations: nothing else is on the device meanwhile. Calls `done`
  // exactly once, later. After an error, which concerns this set only, the set cannot be used. Call it once for a set.
  virtual void connect_set(LaunchSet set, Done done) = 0;
  // Refuses operations of a set with `cause` from now on, and ends its connections once those in flight have ended. If
  // these do not end in time, everything ends with `cause`. The first cause of a set is kept. Requires that no group
  // lacks its end (DeviceWork::more).
  virtual void drop_set(LaunchSet set, const Status& cause) = 0;
};

}  // namespace sirtaki::net
