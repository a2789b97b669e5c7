// Engine: the operations by name and the streams of one rank, and its side of all agreements with other ranks.
//
// Composes NamedOps, GradientStreams and a Collectives backend, and exchanges messages with the coordinator through a
// ControlLink. Owned by Session, or by a world of the simulator. Single-threaded: all calls and callbacks run on one
// loop. Session adds the threads of a process, the simulator adds virtual time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
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
#include "runtime/engine/stream/plan/link_probe.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

struct EngineOptions {
  scheduler::LayoutOptions layout;
  std::int64_t credit_bytes = 16 << 20;
  std::int64_t nccl_partition_bytes = 32 << 20;  // see StreamOptions
  std::int64_t nccl_credit_bytes = 64 << 20;
  std::int64_t exchange_bytes = 16 << 10;
  bool replan = true;
  std::string codec = "none";  // compression of streams that name none (runtime/base/config/compression_spec.h)
  bool finite_only = false;    // a gradient with NaN or infinity gives the step up
  bool commit_gate = false;    // a step of a stream ends when all ranks hold its results
  Duration trace_interval = std::chrono::seconds(2);  // between two parts of a trace
};

// Returns the choices of a job's options; `hosts` is the number of hosts that it runs on.
EngineOptions engine_options(const Config& config, int hosts);

// Dependencies of an engine; all outlive it.
struct EngineDeps {
  Loop& loop;
  net::Collectives& net;
  ControlLink& control;
  Stats& stats;
  Timeline& timeline;
  Logger* log = nullptr;                // nullptr: no log
  std::function<void()> give_way = {};  // called if the job is stuck unless callers that can give way do so
};

// State of the threads of the program; the engine asks for it while a caller waits.
struct Callers {
  bool waiting = false;    // a thread or a function waits for a result
  bool blocked = false;    // all threads that ever wait are waiting, or functions wait and the process rests
  bool unseen = false;     // functions wait: reported later, as an unseen thread may be about to submit an operation
  bool gives_way = false;  // a thread goes on without its result if the job is stuck otherwise
};

class Engine {
 public:
  Engine(EngineOptions options, EngineDeps deps, std::function<Callers()> callers);
  ~Engine();

  // Starts an operation by name. Calls `done` exactly once, never inline.
  void submit(OpSpec spec, OpDone done);
  void open_stream(StreamSpec spec, MoveFunction<void(Result<StreamId>)> done);
  // Returns nullptr for an unknown or closed stream.
  GradientStream* stream(StreamId id);
  // Returns the position of this rank in every stream with a commit gate, closed ones included.
  control::StreamReports reports() const;
  // Returns {NAME: [...]} of all streams: the wire format of their tensors (stream_plan.h), without residuals.
  std::string tensors_json() const;
  // Returns the recent decisions of the planner and the policy of each open stream, by name.
  std::string decisions_json() const;
  // Closes a stream; its operations in flight end with kAborted first.
  void close_stream(StreamId id, Done done);

  // Joins, because this rank has no more data: it contributes zeros to the steps of streams and takes part in
  // operations by name until every rank has joined. Calls `done` with the rank that joined last; nothing may be
  // submitted before. The result is kInvalidArgument in the middle of a step.
  void join(MoveFunction<void(Result<Rank>)> done);

  // Handles a message of the coordinator; a malformed one fails the job.
  void on_message(ConstBytes message);
  // Records that another rank has shut down in order. Operations that need nothing more of it complete; the others fail
  // when the data plane or the coordinator reports it.
  void on_left(Rank rank);
  // Ends the job: all operations in flight and all later ones end with `cause`. The first cause is kept.
  void abort(const Status& cause);
  // Leaves the job: operations in flight end with `cause`, completed ones still reach the other ranks.
  void end(const Status& cause);
  // Frees the parts of the network that operations hold. Call between end() and the close of the network.
  void forget_network() { ops_.forget_sets(); }
  const Status& failure() const { return failure_; }

  // Returns whether nothing is in flight and all credit is returned.
  bool idle() const;
  // Describes the operations in flight and the state of the streams in one line, for reports of a deadlock.
  std::string describe() const;

  // Begins to report operations in flight to the coordinator, until no caller waits any more. Call when a thread of the
  // program has waited for a moment.
  void note_waiting();
  // Asks the coordinator to begin or end a trace.
  void request_trace(bool start, std::string path);
  // Sends recorded spans; with `last` it marks the end of the trace.
  void flush_trace(bool last);

 private:
  struct Opening {
    StreamSpec spec;
    StreamStart start;
    net::Collectives* net = nullptr;  // collectives of the ranks that take part
    MoveFunction<void(Result<StreamId>)> done;
    // Set while the link is measured, after all ranks have agreed to open the stream.
    std::unique_ptr<LinkProbe> probe = {};
    StreamId id = {};
    // Messages about the stream from ranks that have it already.
    std::vector<std::variant<control::StreamAborted, control::StreamFlags>> held = {};
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

  Result<StreamStart> make_start(StreamSpec& spec);
  StreamOptions stream_options() const;
  Opening* opening(StreamId id);
  void on_probed(const std::string& name, const Result<scheduler::StepProfile>& profile);
  void begin_stream(Opening opening);
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
  std::map<std::uint16_t, std::unique_ptr<UnusedParamSync>> closed_;  // answer late requests for flags
  std::map<std::uint16_t, control::StreamReport> closed_at_;          // with a commit gate
  MoveFunction<void(Result<Rank>)> join_;  // set while this rank has joined and others have not
  Result<Rank> join_answer_ = Rank{0};
  int join_waits_ = 0;  // streams that have not reached the place where they continue
  Status left_;         // cause of failures after the first rank that left in order
  Status failure_;
  TimerId tick_;
  TimerId trace_tick_;
  control::Waiting last_report_;
  std::uint64_t progress_seen_ = 0;  // progress() at the last tick
  int ticks_still_ = 0;              // number of ticks in a row without progress
  int ticks_moving_ = 0;             // number of ticks since held_earlier_ was taken
  std::vector<control::WaitEntry> held_earlier_;
};

}  // namespace sirtaki::engine
