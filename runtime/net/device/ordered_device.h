// OrderedDevice: adapts collectives that require one order of launches on all ranks to callers with different orders.
//
// Operations are announced to rank 0, and launched once all ranks have started them. All ranks launch them in the order
// and in the groups that rank 0 decides (launch_server.h, DeviceWork::more).
//
// Cancellation: an operation without a place ends when rank 0 has confirmed that no rank will launch it. An operation
// with a place is launched, runs to its end, and then reports the cause. A cancellation on all ranks therefore disturbs
// no other operation. The same holds when a rank is lost: operations with a place are launched, the others end at once,
// and the inner collectives are dropped. If work does not end on the device then, everything ends on this rank. A rank
// on which everything ends tells rank 0 that it launches nothing any more.
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

class OrderedDevice final : public DeviceCollectives {
 public:
  // `inner` has the ranks of `link`. `server` is that of rank 0, null elsewhere. Both link and server must outlive
  // this. `tag` is reserved for messages. Calls `broken` at most once, later, when this fails by itself and nothing can
  // be launched any more, before the operations in flight end with that error.
  OrderedDevice(PointToPoint& link, std::unique_ptr<SetCollectives> inner, LaunchServer* server, OpTag tag,
                std::function<void(const Status&)> broken);
  ~OrderedDevice() override;

  Caps caps() const override;
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Rank job_rank(Rank rank) const override { return link_.job_rank(rank); }
  Status check(const CollectiveArgs& args) const override { return inner_->check(args); }
  Status check_work(const CollectiveArgs& args, const DeviceWork& work) const override {
    return inner_->check_work(args, work);
  }
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

  SetCollectives& inner() { return *inner_; }
  bool idle() const { return operations_.empty(); }

 private:
  struct Operation {
    CollectiveArgs args;
    DeviceWork work;
    Done done;
    Status cause;  // why it was cancelled
    bool launched = false;
  };
  using Operations = std::map<OpTag, Operation>;

  template <class Function>
  auto while_alive(Function function);
  void tell(const LaunchWord& word);
  void flush();
  Status apply(const LaunchWord& word);
  Status apply_all(std::span<const LaunchWord> words);
  Operations::iterator decided(OpTag tag, bool placed);
  void launch_group();
  void withdrawn(OpTag tag);
  void ended(OpTag tag, const Status& status);
  void reply(Done done, Status status);

  void lose_rank(Rank rank);
  void lose(const Status& why);
  // Ends operations that are not launched, and all later ones, with `cause`, and tells rank 0.
  void stop(const Status& cause);
  // Ends operations that are not launched with `cause`.
  void end_operations(const Status& cause);
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
  std::vector<OpTag> group_;        // operations with a place, of a group that lacks its end
  std::vector<LaunchWord> unsent_;  // words for rank 0
  bool flush_posted_ = false;       // a task is posted
  bool order_lost_ = false;         // without rank 0
  Status ended_;
  Status lost_;  // the first loss of a rank
  std::shared_ptr<OrderedDevice*> self_ = std::make_shared<OrderedDevice*>(this);
};

}  // namespace sirtaki::net
