// NcclCollectives: collectives of device memory through NCCL.
//
// Launches operations one after the other in the order of their start, which must be equal on all ranks; neither local
// readiness nor local completion changes it. Operations with a small priority use a communicator of their own,
// `urgent`, and may overtake on the device operations that were launched over `bulk` before; operations among the ranks
// of each host use `host`. Credit limits the work on the device; further operations wait on the host.
// NCCL cannot cancel a single operation: cancelling one that has not ended aborts all communicators and everything in
// flight. Then, and after every error, connect() on all ranks makes new ones. The owner must agree with the other ranks
// on that: a rank on which the cancelled operation had ended is not informed.
// Bools are bytes of 0 or 1, as in frameworks: "or" takes the larger byte and "and" the smaller, so other values pass
// unchanged, while the CPU turns them into 1.
// Owner: the data plane of a rank, tests. Thread: loop, destructor included; it has entered the device. Destruction
// drops the callbacks of operations in flight: call abort() first, and let the loop run.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/device/arena.h"
#include "runtime/device/event_pool.h"
#include "runtime/net/device/device_collectives.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::net::nccl {

struct NcclOptions {
  Rank rank = 0;
  int size = 1;
  // Rank and size in the group of this host; host_size 0: there is no such group.
  Rank host_rank = 0;
  int host_size = 0;
  std::size_t credit_bytes =
      std::size_t{16} * 1024 * 1024;            // bytes on the device at a time; a single operation may exceed it
  std::size_t most_in_flight = 64;              // operations on the device at a time
  std::int32_t urgent_priority = 0;             // operations up to this priority are urgent
  Duration timeout = std::chrono::seconds(60);  // from the launch of an operation to its end
  // Set if NCCL itself keeps the order of launches over several communicators (NCCL_LAUNCH_ORDER_IMPLICIT, from 2.26
  // on). Otherwise an operation waits on the device for the previous one on another communicator.
  bool ordered_by_nccl = false;
  CommunicatorOptions communicator;  // name, rank and size are ignored
};

class NcclCollectives final : public DeviceCollectives {
 public:
  // Dependencies; all must outlive this.
  struct Parts {
    Loop& loop;
    const Api& api;
    device::DeviceApi& device;
    IdExchange& ids;
    Logger& log;
    IdExchange* host_ids = nullptr;  // for the ranks of this host; required if host_size > 1
  };
  // Creates streams and events, but no communicator yet.
  static Result<std::unique_ptr<NcclCollectives>> create(const Parts& parts, const NcclOptions& options);
  ~NcclCollectives() override;

  // Makes communicators; call it on all ranks with the same, unused `attempt`. Ends operations in flight first. New
  // operations may be started right after the call.
  void connect(std::uint64_t attempt, Done done);
  // Waits for the other ranks to close, too, up to a deadline, then releases the communicators; aborts instead if
  // operations are in flight. Call it once, and start nothing afterwards.
  void close(Done done);

  Caps caps() const override;
  Rank rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Status check(const CollectiveArgs& args) const override;
  Status check_work(const CollectiveArgs& args, const DeviceWork& work) const override;
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

  std::size_t waiting() const { return queue_.size(); }
  std::size_t bytes_in_flight() const { return bytes_in_flight_; }

 private:
  struct Operation {
    CollectiveArgs args;
    DeviceWork work;
    Done done;
    std::size_t bytes = 0;
    device::PooledEvent end;
    TimePoint deadline;
  };
  enum LaneName : std::size_t { kUrgent, kBulk, kHost, kLanes };
  struct Lane {
    std::unique_ptr<Communicator> communicator;  // null: this rank is alone
    device::Stream stream;
    std::deque<Operation> running;  // operations on the device, in order
  };
  // Failed operations whose callbacks wait until the device no longer uses their buffers.
  struct Draining {
    std::vector<std::pair<Done, Status>> replies;
    std::vector<device::PooledEvent> events;
    TimePoint deadline;
  };

  NcclCollectives(const Parts& parts, const NcclOptions& options);
  Status prepare();
  std::unique_ptr<Communicator> make_communicator(const char* name, IdExchange& ids, Rank rank, int size);
  Done unless_gone(void (NcclCollectives::*then)(const Status&));
  void reply(Done done, Status status);

  // Connect or close the lanes one by one, from next_lane_ on.
  void connect_next(const Status& before);
  void close_next(const Status& before);
  bool idle() const;
  Lane& lane_of(const Operation& operation);
  bool has_credit(const Operation& operation) const;
  void launch_next();
  Status wait_for_inputs(Lane& lane, const Operation& operation);
  void launched(const Status& done);
  Status finish_on_device(Lane& lane, Operation& operation);

  void poll_later();
  void poll();
  Status poll_lane(Lane& lane);
  void poll_draining();
  bool in_flight(const TagGroup& tags) const;
  void fail(const Status& cause);
  // Ends operations of `tags` with `cause`, all others with `rest`.
  void end_all(const TagGroup* tags, const Status& cause, const Status& rest);

  const Parts parts_;
  const NcclOptions options_;
  std::unique_ptr<device::EventPool> events_;
  std::unique_ptr<device::Arena> scratch_memory_;
  device::Block scratch_;
  std::array<Lane, kLanes> lanes_;
  std::size_t next_lane_ = 0;  // lane that connects or closes next
  Lane* last_lane_ = nullptr;  // lane of the last launch

  Status ended_{Code::kShutdown, "the collectives are not connected"};
  bool has_cause_ = false;  // ended_ holds the cause of an end, not the initial state
  Done connecting_;
  Done closing_;
  std::uint64_t attempt_ = 0;
  std::uint64_t generation_ = 0;  // invalidates answers to requests from before an end
  std::deque<Operation> queue_;
  bool launching_ = false;  // the first operation of queue_ is being launched
  std::size_t bytes_in_flight_ = 0;
  std::vector<Draining> draining_;
  TimerId timer_;
  Duration pause_{};
  std::shared_ptr<NcclCollectives*> self_ = std::make_shared<NcclCollectives*>(this);
};

}  // namespace sirtaki::net::nccl
