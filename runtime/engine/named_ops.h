// NamedOps: operations by name, from submission to completion.
//
// Each use is agreed (control/names.h), its sizes exchanged where ranks may differ (allgather, alltoall), then run by
// the collectives. Loop thread; owned by Engine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/stats.h"
#include "runtime/base/task.h"
#include "runtime/base/timeline.h"
#include "runtime/control/names.h"
#include "runtime/engine/control_link.h"
#include "runtime/engine/requests.h"
#include "runtime/engine/trace.h"
#include "runtime/net/collectives.h"

namespace sirtaki::engine {

using OpDone = MoveFunction<void(Status, OpResult)>;

class NamedOps {
 public:
  NamedOps(Loop& loop, net::Collectives& net, ControlLink& control, Stats& stats, Trace& trace);
  ~NamedOps();

  // `done` runs exactly once, on the loop, not from inside submit().
  void submit(OpSpec spec, OpDone done);

  void on_agreed(const control::Agreed& message);
  void on_recall(const control::Recall& message);
  void on_cancelled(const control::OpCancelled& message);
  // A rank left in order; the first one's departure explains what fails for want of a peer.
  void note_left(const Status& cause) { left_.update(cause); }
  // Ends everything in flight; the owner has aborted the collectives.
  void abort(const Status& cause);

  void describe_in_flight(std::vector<control::WaitEntry>& entries) const;
  control::Leaving leaving() const { return names_.leaving(); }
  std::vector<control::Leaving::Count> submitted() const { return names_.submitted(); }
  std::uint64_t progress() const { return progress_; }
  bool idle() const { return live_.empty(); }

 private:
  struct Op;
  using Key = std::pair<std::string, std::uint64_t>;

  void start(Op& op, std::uint32_t id);
  void exchange_sizes(Op& op);
  void on_sizes(Op& op);
  void run_payload(Op& op);
  void launch(Op& op, net::CollectiveArgs args);
  void on_stage_done(const Key& key, const Status& status);
  void fail_later(const Key& key, const Status& status);
  void finish(const Key& key, const Status& status);
  net::CollectiveArgs payload_args(Op& op) const;
  Status prepare_output(Op& op);

  Loop& loop_;
  net::Collectives& net_;
  ControlLink& control_;
  Trace& trace_;
  Counter& completed_;
  Counter& failed_;
  Counter& bytes_;
  Histogram& latency_;
  control::Names names_;
  std::map<Key, std::unique_ptr<Op>> live_;
  std::uint64_t progress_ = 0;
  Status left_;
};

}  // namespace sirtaki::engine
