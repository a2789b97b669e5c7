// NcclCollectives: collectives of device memory through NCCL.
//
// Operations are launched one after the other, in the order in which they were started, which all ranks have in common:
// neither what is ready here nor what has ended here changes it. Those of a small priority go over a communicator of
// their own, `urgent`, and may pass on the device what was launched over `bulk` before; those among the ranks of each
// host go over `host`. How much is on the device at a time is limited; what waits, waits on the host.
// NCCL can end nothing alone: cancelling an operation that has not ended aborts all communicators, and everything in
// flight with them. Then, and after every error, connect() on all ranks makes new ones. Whether that is needed is the
// owner's to agree on: a rank where a cancelled operation had ended hears nothing of it.
// Elements of bool are bytes of 0 or 1, as frameworks keep them: "or" is the larger byte and "and" the smaller, so that
// others would come out as they are, where the CPU makes them 1.
// Owned by: whoever owns the data plane of a rank, tests. Thread: the loop's, destructor included; it has entered the
// device. Destroying it drops the callbacks of what is in flight: abort() first and let the loop run.
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
  // Among the ranks of this host, where they are to be a group of their own; 0: they are not.
  Rank host_rank = 0;
  int host_size = 0;
  std::size_t credit_bytes = std::size_t{16} * 1024 * 1024;  // on the device at a time; one operation may be larger
  std::size_t most_in_flight = 64;                           // operations on the device at a time
  std::int32_t urgent_priority = 0;                          // up to this one
  Duration timeout = std::chrono::seconds(60);               // for one operation, from its launch
  // Whether NCCL itself keeps the order of launches over several communicators (NCCL_LAUNCH_ORDER_IMPLICIT, from 2.26
  // on). Else an operation waits on the device for those that were launched before over another communicator.
  bool ordered_by_nccl = false;
  CommunicatorOptions communicator;  // but for name, rank and size
};

class NcclCollectives final : public DeviceCollectives {
 public:
  // What it works with; all outlive it.
  struct Parts {
    Loop& loop;
    const Api& api;
    device::DeviceApi& device;
    IdExchange& ids;
    Logger& log;
    IdExchange* host_ids = nullptr;  // among the ranks of this host; needed where several are a group
  };
  // Makes streams and events; no communicator yet.
  static Result<std::unique_ptr<NcclCollectives>> create(const Parts& parts, const NcclOptions& options);
  ~NcclCollectives() override;

  // On all ranks with the same `attempt`, a new one each time. Ends what is in flight first. Operations may be started
  // from then on.
  void connect(std::uint64_t attempt, Done done);
  // When nothing is in flight, else as abort(): waits for the other ranks to close as well, up to a deadline, then lets
  // go of the communicators. Once; nothing is started any more.
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
    std::unique_ptr<Communicator> communicator;  // null: nobody else is in it
    device::Stream stream;
    std::deque<Operation> running;  // on the device, in order
  };
  // Operations that ended with an error, whose work the device may not have left yet.
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

  // The lanes in order, from `next` on.
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
  // Those of `tags` end with `cause`, all others with `rest`.
  void end_all(const TagGroup* tags, const Status& cause, const Status& rest);

  const Parts parts_;
  const NcclOptions options_;
  std::unique_ptr<device::EventPool> events_;
  std::unique_ptr<device::Arena> scratch_memory_;
  device::Block scratch_;
  std::array<Lane, kLanes> lanes_;
  std::size_t next_lane_ = 0;  // that connects or closes
  Lane* last_lane_ = nullptr;  // over which was launched last

  Status ended_{Code::kShutdown, "the collectives are not connected"};
  bool has_cause_ = false;  // ended_ was told to this
  Done connecting_;
  Done closing_;
  std::uint64_t attempt_ = 0;
  std::uint64_t generation_ = 0;  // answers to what was asked before everything ended come too late
  std::deque<Operation> queue_;
  bool launching_ = false;  // the first of queue_
  std::size_t bytes_in_flight_ = 0;
  std::vector<Draining> draining_;
  TimerId timer_;
  Duration pause_{};
  std::shared_ptr<NcclCollectives*> self_ = std::make_shared<NcclCollectives*>(this);
};

}  // namespace sirtaki::net::nccl
