// OrderedDevice: adapts collectives that require one order of launches on all ranks to callers with different orders.
//
// Operations are announced to rank 0, and launched once all ranks have started them. All ranks launch them in the order
// and in the groups that rank 0 decides (launch_server.h, DeviceWork::more).
//
// Cancellation: an operation without a place ends when rank 0 has confirmed that no rank will launch it. An operation
// with a place is launched, runs to its end, and then reports the cause. A cancellation on all ranks therefore disturbs
// no other operation. The same holds when a rank is lost: operations with a place are launched and have a grace period
// to finish, the others end at once.
//
// Owner: the data plane of a rank. Thread: loop, destructor included. Destruction drops the callbacks of operations in
// flight: call abort() first, and let the loop run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/net/device/device_collectives.h"
#include "runtime/net/device/launch_line.h"
#include "runtime/net/device/launch_messages.h"
#include "runtime/net/device/launch_order.h"
#include "runtime/net/device/launch_server.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

struct OrderedOptions {
  OpTag tag;  // reserved for its messages
  // Time for launched operations to finish after a rank is lost.
  Duration grace = std::chrono::seconds(1);
};

class OrderedDevice final : public DeviceCollectives {
 public:
  // `inner` has the ranks of `link`. `server` is that of rank 0, null elsewhere. Both link and server must outlive
  // this. Calls `broken` at most once, later, when this fails by itself and nothing can be launched any more, before
  // the operations in flight end with that error.
  OrderedDevice(PointToPoint& link, std::unique_ptr<DeviceCollectives> inner, LaunchServer* server,
                const OrderedOptions& options, std::function<void(const Status&)> broken);
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

  DeviceCollectives& inner() { return *inner_; }
  bool idle() const { return operations_.empty(); }

 private:
  struct Operation {
    CollectiveArgs args;
    DeviceWork work;
    Done done;
    Status cause;  // why it was cancelled
    bool launched = false;
  };

  template <class Function>
  auto while_alive(Function function);
  void tell(const LaunchWord& word);
  void flush();
  Status apply(const LaunchWord& word);
  Status apply_all(std::span<const LaunchWord> words);
  std::map<OpTag, Operation>::iterator decided(OpTag tag, bool placed);
  void place(OpTag tag, bool more);
  void withdrawn(OpTag tag);
  void launch(std::map<OpTag, Operation>::iterator place, bool more);
  void ended(OpTag tag, const Status& status);
  void on_peer_lost(Rank peer, const Status& status);
  void reply(Done done, Status status);
  // Ends operations that are not launched, except those that `goes_on`, and all later ones, with `cause`.
  void stop(const Status& cause, const std::function<bool(OpTag)>& goes_on = {});
  // Ends everything, launched operations included, after an error of this object itself.
  void fail(const Status& cause);

  PointToPoint& link_;
  const std::unique_ptr<DeviceCollectives> inner_;
  const OrderedOptions options_;
  const std::function<void(const Status&)> broken_;
  LaunchServer* const server_;      // on rank 0 only
  std::optional<LaunchLine> line_;  // on the others, to rank 0
  LaunchMember member_;
  std::map<OpTag, Operation> operations_;
  std::vector<LaunchWord> unsent_;  // words for rank 0
  bool flush_posted_ = false;       // a task is posted
  bool first_is_gone_ = false;
  Status ended_;
  TimerId grace_;
  std::shared_ptr<OrderedDevice*> self_ = std::make_shared<OrderedDevice*>(this);
};

}  // namespace sirtaki::net
