// Engine: one rank's coordinator, single-threaded: operations by name, streams, and the member side of every agreement.
//
// Everything here runs on one loop; Session adds threads, the simulator adds virtual time. Composes NamedOps, Streams
// and a Collectives backend; speaks to the coordinator through a ControlLink.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/loop.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/engine/common/buffer_pool.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/common/trace.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/engine/ops/named_ops.h"
#include "runtime/engine/stream/gradient_stream.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

struct EngineOptions {
  scheduler::LayoutOptions layout;
  std::int64_t credit_bytes = 16 << 20;
  bool replan = true;
  std::string codec =
      "none";  // how gradients of streams travel that say nothing (runtime/base/config/compression_spec.h)
  bool finite_only = false;                           // a gradient with NaN or infinity gives the step up
  Duration trace_interval = std::chrono::seconds(2);  // between two parts of a trace
};

// Returns the choices of a job's options; `hosts` is the number of hosts that it runs on.
EngineOptions engine_options(const Config& config, int hosts);

// All outlive the engine.
struct EngineDeps {
  Loop& loop;
  net::Collectives& net;
  ControlLink& control;
  Stats& stats;
  Timeline& timeline;
  Logger* log = nullptr;                // nullptr: nothing is written
  std::function<void()> give_way = {};  // the job is stuck unless callers that can give way do so now
};

// What the program's threads are doing, asked for by the engine while somebody waits.
struct Callers {
  bool waiting = false;    // some thread or function waits for a result
  bool blocked = false;    // every thread that ever waits is waiting, or functions wait and the process rests
  bool unseen = false;     // functions wait: told later, as a thread may be about to submit what nobody has seen coming
  bool gives_way = false;  // a thread goes on without its result when the job is stuck otherwise
};

class Engine {
 public:
  Engine(EngineOptions options, EngineDeps deps, std::function<Callers()> callers);
  ~Engine();

  // `done` runs exactly once, later.
  void submit(OpSpec spec, OpDone done);
  void open_stream(StreamSpec spec, MoveFunction<void(Result<StreamId>)> done);
  // nullptr for an unknown or closed stream.
  GradientStream* stream(StreamId id);
  // {NAME: [...]} of all streams: how their tensors travel (stream_plan.h), without what is owed.
  std::string tensors_json() const;
  // What each open stream's planner and policy decided of late, by name.
  std::string decisions_json() const;
  // What is in flight on it ends with kAborted first.
  void close_stream(StreamId id, Done done);

  // This rank has no more data. It takes part in the steps of the others' streams and in their operations by name until
  // every rank has joined; the answer is the rank that did so last. Nothing may be submitted before the answer.
  // kInvalidArgument in the middle of a step.
  void join(MoveFunction<void(Result<Rank>)> done);

  // From the coordinator; a message that makes no sense fails the job.
  void on_message(ConstBytes message);
  // Another rank shut down in order. What needs nothing more of it completes; the rest fails, by the word of the data
  // plane or of the coordinator.
  void on_left(Rank rank);
  // The job is over: everything in flight and everything later ends with `cause`. The first cause is kept.
  void abort(const Status& cause);
  // This rank leaves: what is in flight ends with `cause`, what has completed still reaches the others.
  void end(const Status& cause);
  // After end(): frees what operations have of the network, which is closed next.
  void forget_network() { ops_.forget_sets(); }
  const Status& failure() const { return failure_; }

  // Nothing is in flight and all credit is back.
  bool idle() const;
  // What is in flight and what the streams wait for, in one line; for reports of a deadlock.
  std::string describe() const;

  // A thread of the program has waited for a moment: report what is in flight until nobody waits any more.
  void note_waiting();
  // Asks the coordinator to begin or end a trace.
  void request_trace(bool start, std::string path);
  // Sends recorded spans; with `last`, tells that these are all.
  void flush_trace(bool last);

 private:
  struct Opening {
    StreamSpec spec;
    std::shared_ptr<const scheduler::Plan> plan;
    net::Collectives* net = nullptr;  // of those that take part
    MoveFunction<void(Result<StreamId>)> done;
  };

  void on(const control::Agreed& m) { ops_.on_agreed(m); }
  void on(const control::Recall& m) { ops_.on_recall(m); }
  void on(const control::OpCancelled& m) { ops_.on_cancelled(m); }
  void on(const control::StreamAgreed& m);
  void on(const control::StreamRefused& m);
  void on(const control::StreamAborted& m);
  void on(const control::StreamFlags& m);
  void on(const control::JobFailed& m) { abort(m.status); }
  void on(const control::TraceSwitch& m);
  void on(const control::Query& m);
  void on(const control::GiveWay& m);
  void on(const control::StandIn& m);
  void on(const control::AllJoined& m);
  void on(const control::RanksLeft& m);
  void on(const control::SomeJoined& m) { ops_.on_some_joined(m); }
  void on(const control::StandInOp& m) { ops_.on_stand_in(m); }
  void on(const control::AskUnused& m) { ops_.on_ask_unused(m); }
  void on(const control::Forgotten& m) { ops_.on_forgotten(m); }
  void fail_join(const Status& cause);
  void begin_end_of_join(Result<Rank> answer);
  void on_stream_joined();
  void end_join(const Result<Rank>& answer);

  Result<std::shared_ptr<const scheduler::Plan>> make_plan(StreamSpec& spec);
  control::Waiting waiting_now() const;
  void forget_stream(StreamId id);
  void report(bool even_if_unchanged);
  bool holds_something_old();
  std::uint64_t progress() const;
  void on_tick();
  void on_trace_tick();

  EngineOptions options_;
  EngineDeps deps_;
  std::function<Callers()> callers_;
  Trace trace_;
  BufferPool buffers_;
  NamedOps ops_;
  std::map<std::string, Opening> openings_;
  std::map<std::uint16_t, std::unique_ptr<GradientStream>> streams_;
  std::map<std::uint16_t, std::unique_ptr<UnusedParamSync>> closed_;  // what others may still ask of closed streams
  MoveFunction<void(Result<Rank>)> join_;                             // while this rank has joined and not all have
  Result<Rank> join_answer_ = Rank{0};
  int join_waits_ = 0;  // streams that are not where they go on
  Status left_;         // of the first rank that left in order
  Status failure_;
  TimerId tick_;
  TimerId trace_tick_;
  control::Waiting last_report_;
  std::uint64_t progress_seen_ = 0;  // at the last tick
  int ticks_still_ = 0;              // in a row without progress
  int ticks_moving_ = 0;             // since held_earlier_
  std::vector<control::WaitEntry> held_earlier_;
};

}  // namespace sirtaki::engine
