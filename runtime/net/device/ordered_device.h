// OrderedDevice: collectives of device memory that may be started in another order on each rank, over ones that must
// not be.
//
// What is started is announced to rank 0, and launched when all ranks have started it, everywhere in the order that
// rank 0 gives (launch_order.h). An operation that is cancelled before it has a place ends when rank 0 has confirmed
// that nobody will launch it; one that has its place is launched and runs to its end, and then says the cause. So what
// is cancelled by all ranks disturbs nothing else. The same where a rank is lost: what has a place is launched and has
// a moment to come to its end, the rest ends at once. Messages travel over the host's transport, as urgently as it
// knows, all that is to be said in one turn of the loop together. Rank 0 launches nothing before its word for it is on
// the way to all others: whatever holds up its loop afterwards, the device comes to an end with what it has.
//
// Owned by: whoever owns the data plane of a rank. Thread: the loop's, destructor included. Destroying it drops the
// callbacks of what is in flight: abort() first and let the loop run.
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
  OpTag tag;  // of its messages; of nothing else
  // A rank is gone: what has been launched may still come to an end by then.
  Duration grace = std::chrono::seconds(1);
};

class OrderedDevice final : public DeviceCollectives {
 public:
  // `inner` has the ranks of `link`, which outlives this. `broken` is told once, later, when it fails by itself,
  // before what is in flight ends with that: nothing can be launched any more.
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
    bool placed = false;  // on rank 0: it has a place, of which the others are being told
    bool launched = false;
  };
  // Of rank 0: words that it heeds itself when the others have them.
  struct Batch {
    int sending = 0;
    std::vector<LaunchNotice> notices;
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
  void send(Rank peer, std::span<const LaunchWord> words, const std::shared_ptr<Batch>& batch);
  void apply_batches();
  void apply(const LaunchNotice& notice);
  void launch(std::map<OpTag, Operation>::iterator place);
  void ended(OpTag tag, const Status& status);
  void on_peer_lost(Rank peer, const Status& status);
  void reply(Done done, Status status);
  // What is not launched ends with `cause`, but for what `goes_on`, and so does all that comes later.
  void stop(const Status& cause, const std::function<bool(const Operation&)>& goes_on = {});
  // Of itself: what is launched as well.
  void fail(const Status& cause);

  PointToPoint& link_;
  const std::unique_ptr<DeviceCollectives> inner_;
  const OrderedOptions options_;
  const std::function<void(const Status&)> broken_;
  LaunchMember member_;
  std::optional<LaunchSequencer> sequencer_;  // of rank 0
  std::map<OpTag, Operation> operations_;
  std::vector<LaunchWord> unsent_;  // for rank 0
  std::vector<bool> gone_;          // by rank
  std::optional<Rank> unsent_gone_;
  bool flush_posted_ = false;  // a task is posted
  std::deque<std::shared_ptr<Batch>> batches_;
  Status ended_;
  TimerId grace_;
  std::shared_ptr<OrderedDevice*> self_ = std::make_shared<OrderedDevice*>(this);
};

}  // namespace sirtaki::net
