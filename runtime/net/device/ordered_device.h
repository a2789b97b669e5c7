// OrderedDevice: adapts collectives that require one order of launches on all ranks to callers with different orders.
//
// Operations are announced to rank 0, and launched once all ranks have started them. All ranks launch them in the order
// and in the groups that rank 0 decides (launch_order.h, DeviceWork::more): operations that get their places at the
// same time form groups, within a limit of bytes. Rank 0 launches an operation only after its messages to all others
// have left, so the device can finish its work even if the loop of rank 0 stalls afterwards. Messages use the transport
// of the host at its highest priority, all messages of one turn of the loop together.
//
// Cancellation: an operation without a place ends when rank 0 has confirmed that no rank will launch it. An operation
// with a place is launched, runs to its end, and then reports the cause. A cancellation on all ranks therefore disturbs
// no other operation. The same holds when a rank is lost: operations with a place are launched and have a grace period
// to finish, the others end at once.
//
// Owner: the data plane of a rank. Thread: loop, destructor included. Destruction drops the callbacks of operations in
// flight: call abort() first, and let the loop run.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/net/device/device_collectives.h"
#include "runtime/net/device/launch_messages.h"
#include "runtime/net/device/launch_order.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

struct OrderedOptions {
  OpTag tag;  // reserved for its messages
  // Limit of the bytes of a group; a larger operation is launched alone.
  std::size_t group_bytes = std::size_t{32} * 1024 * 1024;
  // Time for launched operations to finish after a rank is lost.
  Duration grace = std::chrono::seconds(1);
};

class OrderedDevice final : public DeviceCollectives {
 public:
  // `inner` has the ranks of `link`, which must outlive this. Calls `broken` at most once, later, when this fails by
  // itself and nothing can be launched any more, before the operations in flight end with that error.
  OrderedDevice(PointToPoint& link, std::unique_ptr<DeviceCollectives> inner, const OrderedOptions& options,
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

  DeviceCollectives& inner() { return *inner_; }
  bool idle() const { return operations_.empty(); }

 private:
  struct Operation {
    CollectiveArgs args;
    DeviceWork work;
    Done done;
    Status cause;         // why it was cancelled
    bool placed = false;  // on rank 0: has a place, which is being sent to the others
    bool launched = false;
  };
  // A decision of rank 0.
  struct Decision {
    LaunchNotice notice;
    bool more = false;  // the next operation with a place belongs to the same group
  };
  // Decisions that rank 0 applies itself once its messages to the others have left.
  struct Batch {
    int sending = 0;
    std::vector<Decision> decisions;
  };

  template <class Function>
  auto while_alive(Function function);
  void listen(Rank peer);
  void on_link_error(Rank peer, const Status& status);
  Status protocol_error(Rank peer, const Status& why) const;
  void on_message(Rank peer, ConstBytes message);
  Status apply_word(Rank peer, const LaunchWord& word);
  void flush_later();
  void flush();
  std::vector<Decision> decide();
  void send(Rank peer, std::span<const LaunchWord> words, const std::shared_ptr<Batch>& batch);
  void apply_batches();
  void apply(const Decision& decision);
  void launch(std::map<OpTag, Operation>::iterator place, bool more);
  void ended(OpTag tag, const Status& status);
  void on_peer_lost(Rank peer, const Status& status);
  void reply(Done done, Status status);
  // Ends operations that are not launched, except those that `goes_on`, and all later ones, with `cause`.
  void stop(const Status& cause, const std::function<bool(const Operation&)>& goes_on = {});
  // Ends everything, launched operations included, after an error of this object itself.
  void fail(const Status& cause);

  PointToPoint& link_;
  const std::unique_ptr<DeviceCollectives> inner_;
  const OrderedOptions options_;
  const std::function<void(const Status&)> broken_;
  LaunchMember member_;
  std::optional<LaunchSequencer> sequencer_;  // on rank 0 only
  std::map<OpTag, Operation> operations_;
  std::vector<LaunchWord> unsent_;  // words for rank 0
  std::vector<bool> gone_;          // indexed by rank
  std::optional<Rank> unsent_gone_;
  bool flush_posted_ = false;  // a task is posted
  std::deque<std::shared_ptr<Batch>> batches_;
  Status ended_;
  TimerId grace_;
  std::shared_ptr<OrderedDevice*> self_ = std::make_shared<OrderedDevice*>(this);
};

}  // namespace sirtaki::net
