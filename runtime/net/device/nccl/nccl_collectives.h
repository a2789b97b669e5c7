// NcclCollectives: collectives of device memory through NCCL.
//
// Order: operations are launched in the order of their start, which must be equal on all ranks; neither local readiness
// nor local completion changes it. Operations that are started as a group (DeviceWork::more) are one group of NCCL,
// which launches them together. All operations use one stream, also those among the ranks of each host and those of
// process sets, which have communicators of their own: the device runs one launch at a time, in one order on all ranks.
// A communicator is made while nothing is on the device. Credit limits the work on the device; further operations wait
// on the host.
//
// Cancellation: NCCL cannot cancel a single operation. Cancelling one that has not ended aborts all communicators and
// everything in flight, for good, and so does every error but that of a connection. A set that has lost a rank is
// dropped alone, unless its work does not end. Communicators end side by side, on threads (teardown.h); the loop never
// waits for the device.
//
// Bools are bytes of 0 or 1, as in frameworks: "or" takes the larger byte and "and" the smaller, so other values pass
// unchanged, while the CPU turns them into 1.
//
// Owner: the data plane of a rank, tests. Thread: loop, destructor included; the thread has entered the device.
// Destruction drops the callbacks of operations in flight, and waits up to NcclOptions::end_timeout for NCCL: call
// abort() first, let the loop run, and close().
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/event_pool.h"
#include "runtime/net/device/device_collectives.h"
#include "runtime/net/device/nccl/communicator.h"
#include "runtime/net/device/nccl/connections.h"

namespace sirtaki::net::nccl {

struct NcclOptions {
  Rank rank = 0;
  int size = 1;
  // Rank and size in the group of this host; host_size 0: there is no such group.
  Rank host_rank = 0;
  int host_size = 0;
  // Bytes on the device at a time; a single group may exceed it.
  std::size_t credit_bytes = std::size_t{64} * 1024 * 1024;
  std::size_t most_in_flight = 64;                  // groups on the device at a time
  Duration timeout = std::chrono::minutes(10);      // from the launch of a group to its end
  Duration end_timeout = std::chrono::seconds(30);  // from an error to the end of work on the device, and of NCCL
  Duration grace = std::chrono::seconds(1);         // for a group of a dropped set, once it is the first on the device
  CommunicatorOptions communicator;                 // name, ranks and size are ignored
};

class NcclCollectives final : public SetCollectives {
 public:
  // Dependencies; all must outlive this.
  struct Parts {
    Loop& loop;
    const Api& api;
    device::DeviceApi& device;
    IdExchange& ids;
    Logger& log;
    IdExchange* host_ids = nullptr;  // for the ranks of this host; required if host_size > 1
    Teardown* teardown = nullptr;    // for tests; null: threads
  };
  // Creates a stream and events, but no communicator yet.
  static Result<std::unique_ptr<NcclCollectives>> create(const Parts& parts, const NcclOptions& options);
  ~NcclCollectives() override;

  // Adds a process set, in which this rank has `place`. `name` is for texts, and tells the sets of a rank apart; `ids`
  // must outlive this.
  void add_set(LaunchSet set, const std::string& name, const Connections::Place& place, IdExchange& ids);
  void connect_set(LaunchSet set, Done done) override;
  void drop_set(LaunchSet set, const Status& cause) override;
  // Waits for the other ranks to close, too, up to one deadline for all communicators, then releases these; aborts
  // instead if operations are in flight. Calls `done` once NCCL has ended, or after end_timeout. Call it once, and
  // start nothing afterwards.
  void close(Done done);

  Caps caps() const override;
  Rank rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Status check(const CollectiveArgs& args) const override;
  Status check_work(const CollectiveArgs& args, const DeviceWork& work) const override;
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

  // Returns true if the device has done all work of these collectives, and NCCL has ended what was aborted or closed,
  // so that releasing memory waits for neither.
  bool drained();
  // Returns the number of groups that are not launched yet.
  std::size_t waiting() const { return queue_.size(); }
  std::size_t bytes_in_flight() const { return bytes_in_flight_; }

 private:
  struct Operation {
    CollectiveArgs args;
    DeviceWork work;
    Done done;
  };
  // The making of communicators, which waits for its turn like a group.
  struct Connecting {
    LaunchSet set = kJobSet;
    Done done;
  };
  // Operations of one launch, over one communicator.
  struct Group {
    std::optional<Connecting> connecting = {};  // instead of operations
    std::vector<Operation> operations = {};
    std::size_t bytes = 0;
    bool open = true;  // more operations are to be started
    device::PooledEvent end = {};
    TimePoint deadline = {};

    LaunchSet set() const { return connecting ? connecting->set : operations.front().work.launch_set(); }
  };
  // Failed operations whose callbacks wait until the device no longer uses their buffers.
  struct Draining {
    std::vector<std::pair<Done, Status>> replies;
    std::vector<device::PooledEvent> events;
    bool launching = false;  // a thread of NCCL may still launch work, until the communicator has ended
    TimePoint deadline;
  };
  NcclCollectives(const Parts& parts, const NcclOptions& options);
  Status prepare();
  Done unless_gone(void (NcclCollectives::*then)(const Status&));
  void reply(Done done, Status status);

  // Returns the sets whose communicators are made and dropped with that of `set`.
  std::vector<LaunchSet> with(LaunchSet set) const;
  void connected(const Status& status);
  bool in_flight(LaunchSet set) const;
  // Drops sets that are shut, and of which nothing is in flight any more.
  void drop_unused();
  void end_closing(const Status& closed);
  bool idle() const { return running_.empty(); }
  bool has_credit(const Group& group) const;
  void launch_next();
  Status wait_for_inputs(const Group& group);
  void launched(const Status& done);
  Status finish_on_device(Group& group);
  Status divide(const Operation& operation);

  void poll_later();
  void poll();
  Status poll_running();
  void poll_draining();
  bool in_flight(const TagGroup& tags) const;
  void fail(const Status& cause);
  // Ends operations of `tags` with `cause`, all others with `rest`.
  void end_all(const TagGroup* tags, const Status& cause, const Status& rest);

  const Parts parts_;
  const NcclOptions options_;
  std::unique_ptr<Teardown> threads_;
  Teardown& teardown_;
  std::unique_ptr<device::EventPool> events_;
  device::Stream stream_;
  Connections connections_;

  Status ended_;
  Done closing_;
  std::optional<TimePoint> closing_deadline_;  // closing_ waits for the teardown
  std::uint64_t generation_ = 0;               // invalidates answers to requests from before an end
  std::deque<Group> queue_;
  bool launching_ = false;     // the first group of queue_ is being launched
  std::deque<Group> running_;  // groups on the device, in order
  std::size_t bytes_in_flight_ = 0;
  std::vector<Draining> draining_;
  bool cut_off_ = false;  // the device had not ended failed operations at their deadline
  TimerId timer_;
  Duration pause_{};
  std::shared_ptr<NcclCollectives*> self_ = std::make_shared<NcclCollectives*>(this);
};

}  // namespace sirtaki::net::nccl
