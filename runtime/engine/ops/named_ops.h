// NamedOps: operations by name, from submission to completion.
//
// The ranks agree on each use of a name (control/names.h) and exchange the sizes where they may differ (allgather,
// alltoall). Then the collectives of the job or of a process set run the operation. A large allreduce or broadcast runs
// in pieces (named_parts.h), so that an urgent operation need not wait for all of it. Sums add in rank order, so pieces
// do not change the result.
// Threads: the loop. Owned by Engine.
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

// Returns the name by which ranks agree on an operation or a stream: its own name and the ranks of its process set.
std::string agreed_name(const std::string& name, const std::vector<Rank>& ranks);
std::string agreed_name(const OpSpec& spec);

struct NamedOptions {
  std::int64_t part_bytes = 4 << 20;  // size of one piece; the same on all ranks
};

class NamedOps {
 public:
  NamedOps(Loop& loop, net::Collectives& net, ControlLink& control, Stats& stats, Trace& trace,
           NamedOptions options = {});
  ~NamedOps();

  // Starts an operation. `done` runs exactly once, on the loop, never inside submit().
  void submit(OpSpec spec, OpDone done);

  void on_agreed(const control::Agreed& message);
  void on_recall(const control::Recall& message);
  void on_cancelled(const control::OpCancelled& message);
  // Handles the news that other ranks have joined: announces all uses that they do not know, now and from now on.
  void on_some_joined(const control::SomeJoined& message);
  // Announces the operations in flight; call this before this rank joins.
  void announce_in_flight();
  // Takes part in an operation that this rank has not submitted because it has joined: with zeros, or without rows.
  void on_stand_in(const control::StandInOp& message);
  void on_all_joined() { names_.on_all_joined(); }
  // Reports names that this rank does not use, so that the job can forget them. Operations that use one of them wait
  // for on_forgotten().
  void on_ask_unused(const control::AskUnused& message) { control_.send(names_.on_ask_unused(message)); }
  void on_forgotten(const control::Forgotten& message);
  // Runs `then` once no name waits for on_forgotten(), so that this rank counts uses like the other ranks; immediately
  // if none waits. abort() drops `then`.
  void when_none_held(Task then);
  // Notes that a rank has left in order. The first departure is the cause of operations that fail without that rank.
  void note_left(const Status& cause) { left_.push_back(cause); }
  // Ends all operations with `cause`. Requires that the owner has aborted the collectives of all ranks.
  void abort(const Status& cause);
  // Frees the collectives of process sets, before the network ends. Requires that no operation is in flight.
  void forget_sets() { sets_.clear(); }

  // Returns the collectives of a process set, or of all ranks if `ranks` is empty; valid until the network ends or
  // forget_sets(). Returns kUnsupported, which names the operation `what`, if the backend has no process sets.
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
  void exchange_sizes(Op& op);
  void on_sizes(Op& op, const Status& status);
  // Chooses the memory and the collectives of the payload, and runs it. `device`: no rank needs host memory.
  void choose_transport(Op& op, bool device);
  void on_transport(Op& op, const Result<net::Collectives*>& chosen);
  Status shape_output(Op& op);
  void allocate_output(Op& op);
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
  std::map<std::vector<Rank>, std::unique_ptr<net::Collectives>> sets_;  // key: ranks of the process set
  control::Names names_;
  std::map<Key, std::unique_ptr<Op>> live_;
  std::vector<std::pair<OpSpec, OpDone>> held_;  // operations whose names the job may be forgetting
  Task none_held_;
  std::uint64_t progress_ = 0;
  std::vector<Status> left_;  // causes of orderly departures, in order
};

}  // namespace sirtaki::engine
