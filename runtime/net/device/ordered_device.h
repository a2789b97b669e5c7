// OrderedDevice: adapts collectives that require one order of launches on all ranks to callers with different orders.
//
// Operations are announced to rank 0, and launched once all ranks of their set have started them. All ranks launch them
// in the order and in the groups that rank 0 decides (launch_server.h, DeviceWork::more). This object is the
// collectives of the job; a process set gets collectives of its own, once its ranks have agreed on them.
//
// Cancellation: an operation without a place ends when rank 0 has confirmed that no rank will launch it. An operation
// with a place is launched, runs to its end, and then reports the cause. A cancellation on all ranks therefore disturbs
// no other operation. The same holds when a rank is lost: operations with a place are launched, the others of its sets
// end at once, and the inner collectives drop its sets. If work of a lost rank does not end on the device, everything
// ends on this rank, which tells rank 0 that it launches nothing any more. Without rank 0 all sets end; those without
// rank 0 that this rank has not connected are refused, because they are open nowhere.
//
// Owner: the data plane of a rank. Thread: loop, destructor included. Destruction drops the callbacks of operations in
// flight: call abort() first, and let the loop run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/net/device/device_collectives.h"
#include "runtime/net/device/launch_line.h"
#include "runtime/net/device/launch_messages.h"
#include "runtime/net/device/launch_order.h"
#include "runtime/net/device/launch_server.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

// The result of the agreement of a process set.
struct SetOutcome {
  // A rank that brings all ranks of the set to do without.
  struct Refusal {
    Rank rank = 0;            // number in the job
    int version = 0;          // its version; 0: it is not able
    bool connecting = false;  // all were able, but this one could not connect
    bool unordered = false;   // it is rank 0, which is gone
  };
  DeviceCollectives* device = nullptr;  // null: refused, or ended
  std::optional<Refusal> refused = {};
  Status ended = {};  // a rank of the set, or rank 0, is lost, or the job is over
};

class OrderedDevice final : public DeviceCollectives {
 public:
  // `inner` has the ranks of `link`; null if this rank cannot use a device, and then refuses all. `server` is that of
  // rank 0, null elsewhere. Both link and server must outlive this. `tag` is reserved for messages. Calls `broken` at
  // most once, later, when this fails by itself and nothing can be launched any more, before the operations in flight
  // end with that error.
  OrderedDevice(PointToPoint& link, std::unique_ptr<SetCollectives> inner, LaunchServer* server, OpTag tag,
                std::function<void(const Status&)> broken);
  ~OrderedDevice() override;

  Caps caps() const override;
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Rank job_rank(Rank rank) const override { return link_.job_rank(rank); }
  Status check(const CollectiveArgs& args) const override { return check_work(args, {}); }
  Status check_work(const CollectiveArgs& args, const DeviceWork& work) const override;
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

  // Connects the job in the order of operations. Call it on all ranks, once. An error concerns the job only.
  void connect(Done done);
  // Agrees with the ranks of a process set on its collectives, and connects them; call it on all of them, once. They
  // are ascending, and this rank is one of them. `version` must be equal on all ranks; 0: this rank is not able. `add`
  // adds the set to the inner collectives when all ranks are able. Calls `then` exactly once, later. Its collectives
  // are valid as long as this object.
  using AddSet = std::function<void(LaunchSet set)>;
  using Opened = MoveFunction<void(const SetOutcome&)>;
  void open_set(std::vector<Rank> ranks, int version, AddSet add, Opened then);

  SetCollectives& inner() { return *inner_; }
  // Ends agreements on sets that are not being connected, with `cause`.
  void end_agreements(const Status& cause);
  // Returns whether no operation is in flight, and no process set is being connected.
  bool idle() const;

 private:
  struct Operation {
    CollectiveArgs args;
    DeviceWork work;
    Done done;
    Status cause;  // why it was cancelled
    bool launched = false;
  };
  class SetDevice;
  struct ProcessSet {
    std::vector<Rank> ranks;
    bool able = false;
    AddSet add;
    Opened then;                           // null: called
    std::optional<LaunchSet> number = {};  // known from the connection on
    bool connected = false;                // told to rank 0, so the set may be open elsewhere
    std::unique_ptr<DeviceCollectives> device = {};
    Status ended = {};
  };
  using Operations = std::map<OpTag, Operation>;

  template <class Function>
  auto while_alive(Function function);
  void tell(const LaunchWord& word);
  void flush();
  Status apply(const LaunchWord& word);
  Status apply_all(std::span<const LaunchWord> words);
  Operations::iterator decided(OpTag tag, bool placed);
  bool joins_group(OpTag tag) const;
  void launch_group();
  void withdrawn(OpTag tag);
  void ended(OpTag tag, const Status& status);
  void reply(Done done, Status status);

  // ordered_device_sets.cc
  Status apply_to_set(const LaunchWord& word);
  void connect_set(ProcessSet& set, LaunchSet number);
  void refuse(ProcessSet& set, const SetOutcome::Refusal& refusal, const Status& why);
  void lose_order_of(ProcessSet& set, const Status& why);
  void answer(ProcessSet& set, SetOutcome outcome);
  ProcessSet& process_set(LaunchSet number);
  const Status& end_of(const DeviceWork& work) const;
  void end_job(const Status& why);
  void end_set(ProcessSet& set, const Status& why);
  void end_lost_operations();
  // Returns whether work of a set that has lost a rank may still be on the device.
  bool lost_work_is_launched() const;
  void lose_rank(Rank rank);
  void lose_order(const Status& why);
  // `of_others`: the reason for sets without rank 0.
  void lose_order(const Status& why, const Status& of_others);

  // Ends operations that are not launched, and all later ones, with `cause`, and tells rank 0.
  void stop(const Status& cause);
  // Ends operations that are not launched, and for which `cause` returns an error, with that.
  void end_operations(const std::function<Status(const Operation&)>& cause);
  // Ends everything, launched operations included, after an error of this object itself.
  void fail(const Status& cause);

  PointToPoint& link_;
  const std::unique_ptr<SetCollectives> inner_;
  const OpTag tag_;
  const std::function<void(const Status&)> broken_;
  LaunchServer* const server_;      // on rank 0 only
  std::optional<LaunchLine> line_;  // on the others, to rank 0
  LaunchMember member_;
  Operations operations_;
  std::vector<OpTag> group_;                  // operations with a place, of a group that lacks its end
  std::map<LaunchSet, ProcessSet> sets_;      // keys: numbers of this rank
  std::map<LaunchSet, LaunchSet> by_number_;  // keys: numbers of rank 0; values: keys of sets_
  std::vector<LaunchWord> unsent_;            // words for rank 0
  bool flush_posted_ = false;                 // a task is posted
  Status order_lost_;                         // without rank 0: the reason for sets without it
  Status ended_;
  Status job_ended_;  // end of the operations of all ranks
  std::shared_ptr<OrderedDevice*> self_ = std::make_shared<OrderedDevice*>(this);
};

}  // namespace sirtaki::net
