// NamedOps: operations by name, from submission to completion.
//
// Each use is agreed (control/names.h), its sizes exchanged where ranks may differ (allgather, alltoall), then run by
// the collectives, or those of a process set: allreduce and broadcast in pieces (named_parts.h), so that little of a
// large one is in flight and an urgent one need not wait for the rest. Sums add in rank order, so pieces do not change
// the result. Loop thread; owned by Engine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/control/names.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/common/trace.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/net/collectives/collectives.h"

namespace sirtaki::engine {

using OpDone = MoveFunction<void(Status, OpResult)>;

// Under which ranks agree on an operation or a stream: its name, and the process set's ranks.
std::string agreed_name(const std::string& name, const std::vector<Rank>& ranks);
std::string agreed_name(const OpSpec& spec);

struct NamedOptions {
  std::int64_t part_bytes = 4 << 20;  // of one piece; the same on all ranks
};

class NamedOps {
 public:
  NamedOps(Loop& loop, net::Collectives& net, ControlLink& control, Stats& stats, Trace& trace,
           NamedOptions options = {});
  ~NamedOps();

  // `done` runs exactly once, on the loop, not from inside submit().
  void submit(OpSpec spec, OpDone done);

  void on_agreed(const control::Agreed& message);
  void on_recall(const control::Recall& message);
  void on_cancelled(const control::OpCancelled& message);
  // Other ranks have joined: uses that they do not know of are announced, from now on all.
  void on_some_joined(const control::SomeJoined& message);
  // This rank is about to join; what it has in flight is told first.
  void announce_in_flight();
  // This rank has joined, and takes part in an operation that it has not submitted: with zeros, or without rows.
  void on_stand_in(const control::StandInOp& message);
  void on_all_joined() { names_.on_all_joined(); }
  // The job forgets names that no rank uses; operations that come meanwhile wait.
  void on_ask_unused(const control::AskUnused& message) { control_.send(names_.on_ask_unused(message)); }
  void on_forgotten(const control::Forgotten& message);
  // Runs `then` when no name waits for on_forgotten(), so that uses are counted as on the other ranks; at once where
  // none does. Never after abort().
  void when_none_held(Task then);
  // A rank left in order; the first one's departure explains what fails for want of it.
  void note_left(const Status& cause) { left_.push_back(cause); }
  // Ends everything in flight; the owner has aborted the collectives of all.
  void abort(const Status& cause);
  // Frees what process sets have of the network, which ends now. Nothing is in flight.
  void forget_sets() { sets_.clear(); }

  // Those of a process set, or of all; they live as long as the network, or until forget_sets(). kUnsupported, about
  // `what`, where the backend has none.
  Result<net::Collectives*> collectives_of(const std::vector<Rank>& ranks, const std::string& what);

  void describe_in_flight(std::vector<control::WaitEntry>& entries) const;
  control::Leaving leaving() const { return names_.leaving(); }
  std::vector<control::Leaving::Count> submitted() const { return names_.submitted(); }
  std::uint64_t progress() const { return progress_; }
  bool idle() const { return live_.empty() && held_.empty(); }

 private:
  struct Op;
  using Key = std::pair<std::string, std::uint64_t>;

  // named_ops_run.cc
  void start(Op& op, std::uint32_t id);
  void on_way(Op& op, const Result<net::Collectives*>& chosen);
  void begin(Op& op);
  void exchange_sizes(Op& op);
  void on_sizes(Op& op, const Status& status);
  Status prepare_output(Op& op);
  net::CollectiveArgs payload_args(Op& op) const;
  void prepare_input(Op& op) const;
  void run_payload(Op& op);
  void start_parts(Op& op);
  void on_part_done(Op& op, std::uint32_t index, const Status& status);
  void cancel_collectives(Op& op, const Status& cause);
  void decide_outcome(Op& op);

  // named_ops_adasum.cc
  void run_adasum(Op& op);
  bool adasum_goes_on(Op& op, const Status& status);
  void multiply_blocks(Op& op, std::int64_t at);
  void share_products(Op& op);
  void add_blocks(Op& op, std::int64_t at);
  void gather_adasum(Op& op);

  // named_ops.cc
  void place(std::unique_ptr<Op> op);
  Status cause_of(const OpSpec& spec, const Status& seen) const;
  void fail_later(Op& op, const Status& status);
  void finish(Op& op, const Status& status);

  const NamedOptions options_;
  Loop& loop_;
  net::Collectives& net_;
  ControlLink& control_;
  Trace& trace_;
  Counter& completed_;
  Counter& failed_;
  Counter& bytes_;
  Histogram& latency_;
  std::map<std::vector<Rank>, std::unique_ptr<net::Collectives>> sets_;  // by the ranks of process sets
  control::Names names_;
  std::map<Key, std::unique_ptr<Op>> live_;
  std::vector<std::pair<OpSpec, OpDone>> held_;  // of names that may be forgotten at this moment
  Task none_held_;
  std::uint64_t progress_ = 0;
  std::vector<Status> left_;  // why ranks are gone that left in order, the first one first
};

}  // namespace sirtaki::engine
