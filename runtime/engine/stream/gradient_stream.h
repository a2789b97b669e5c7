// GradientStream: the tensors of one optimizer, reduced every step by a Plan that all ranks share.
//
// A step: ready(i) for every tensor, finish(), any number of wait_tensors(), wait(). The next step opens when wait()
// has answered.
//
// In the steady state ranks exchange no message about the order: a partition starts when all its tensors are ready and
// it is the next one of the plan. Its tag is (stream, attempt, position, step) on every rank.
//
// Commit point: finish() commits the step. The partition with the first part of the tensor that is expected last, and
// the partitions after it, start only after finish(). Once that partition is reduced, every rank has called finish(),
// so no rank gives up a step of which another rank uses a result. This costs no time, because that tensor becomes ready
// just before finish().
//
// Deviations go through the coordinator and are the same for all ranks:
//   - A rank gives the step up (wrong shape, an error, abort()). StreamAborted ends all operations in flight on all
//     ranks, wait() returns the cause on each, and the stream continues with step 0 of the next attempt.
//   - A rank has tensors without a gradient (absent). It holds them back until StreamFlags makes all ranks exchange
//     flags of the gradients that they have, in this step and in all later ones.
//
// Plans change between two steps, at the same step on all ranks (plan_agreement.h).
//
// Commit gate: with this option a step ends with a barrier, which a rank enters when it holds all results. One rank
// that has passed the barrier therefore proves that all ranks hold the results. After the loss of a rank the reports of
// the survivors tell whether the step counts (control/elastic/verdict.h). wait() waits for the gate, wait_tensors()
// does not.
//
// Owned by Engine; loop thread. State that does not outlive a step is in StepState. Not for: residuals
// (StreamResiduals), steps of zeros (JoinedRank), flags of steps that are over (UnusedParamSync).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/control/elastic/verdict.h"
#include "runtime/control/messages.h"
#include "runtime/engine/common/buffer_pool.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/common/stream_board.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/engine/reduction/dense_path.h"
#include "runtime/engine/stream/joined_rank.h"
#include "runtime/engine/stream/plan/plan_agreement.h"
#include "runtime/engine/stream/plan/stream_plan.h"
#include "runtime/engine/stream/step_state.h"
#include "runtime/engine/stream/stream_residuals.h"
#include "runtime/engine/stream/stream_trace.h"
#include "runtime/engine/stream/unused_param_sync.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/dispatch/dispatcher.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

struct StreamOptions {
  scheduler::LayoutOptions layout;  // limits of every plan
  std::int64_t credit_bytes = 16 << 20;
  bool replan = true;        // measure, and adopt better plans
  bool finite_only = false;  // a gradient with NaN or infinity gives the step up, with kNonFinite
  bool commit_gate = false;  // a step ends when all ranks hold its results
  // Replace the sizes of `layout` and the credit if all gradients go over NCCL and no policy changes plans.
  std::int64_t nccl_partition_bytes = 32 << 20;
  std::int64_t nccl_credit_bytes = 64 << 20;
  std::int64_t exchange_bytes = 16 << 10;  // see scheduler::PlannerOptions
};

// The plans and the policy with which a stream begins.
struct StreamStart {
  std::shared_ptr<const scheduler::Plan> plan;  // plan of the first step
  // The plan without measurements of the link; equal to `plan` without a policy.
  std::shared_ptr<const scheduler::Plan> unmeasured;
  std::unique_ptr<scheduler::CodecController> controller = {};  // nullptr: no policy changes wire formats
  scheduler::CodecCosts codec_costs = {};                       // measured on this rank, if there is a policy
};

// Returns the options of the planner of a stream.
scheduler::PlannerOptions planner_options(const StreamOptions& options, const CatalogFacts& facts);

// Dependencies of a stream; all outlive it.
struct StreamDeps {
  Loop& loop;
  net::Collectives& net;
  ControlLink& control;
  Trace& trace;
  BufferPool& buffers;
  Stats& stats;
  Logger* log;  // may be nullptr
  Counter& steps;
  Counter& raw_bytes;     // bytes of gradients
  Counter& shared_bytes;  // packed into memory that other ranks can read
  Counter& wire_bytes;    // the same as plans count them: bytes of the allreduce that costs the network as much
  Histogram& step_time;   // first tensor ready to step done
  Histogram& exposed;     // wait() called to step done
  Histogram* gate;        // all results here to all results everywhere; nullptr without a commit gate
};

class GradientStream {
 public:
  GradientStream(StreamId id, StreamSpec spec, StreamStart start, const StreamOptions& options, StreamDeps deps);
  ~GradientStream();
  GradientStream(const GradientStream&) = delete;
  GradientStream& operator=(const GradientStream&) = delete;

  // Part that a GPU can take in the reduction; the same on all ranks. It takes part in all steps, unless a policy may
  // change the wire format of tensors: then only in steps whose plan sends all elements unchanged, and only if the
  // plan without measurements does. kNothing if gradients are scaled or checked for NaN and infinity.
  enum class OnDevice : std::uint8_t {
    kNothing,
    kDense,        // dense partitions, in their own type or as halves, go through collectives on GPU memory
    kCodes,        // compressed tensors are encoded on the GPU
    kCodesByHost,  // the same, after the GPUs of a host have summed over NCCL
  };
  OnDevice on_device() const { return traits_.on_device; }
  // Blocks the start of steps, those of a joined rank included, until set_path().
  void block_start() { joined_.block_start(); }
  // Sets the path of dense partitions on a GPU, and the compressor of the others; nullptr: host memory.
  // Call before the first step. A path without a compressor is that of NCCL; the plan then gets the sizes for it, on
  // all ranks alike.
  void set_path(std::unique_ptr<DensePath> path, std::unique_ptr<DeviceCompressor> compressor);
  // Returns whether tensors that become ready now must stay in the memory of the GPU, for the path of set_path(). May
  // change after a step, and when a step is given up.
  bool uses_device_memory() const;

  // Sets a function that is called with each tensor that holds its result, at least once in a step that succeeds,
  // before anyone is told. Call before the first step.
  void on_result(std::function<void(int index)> then) { waiters_.result = std::move(then); }

  // Submits the gradient of a tensor, or with `absent` a tensor without one. `at`: time of the call of the program.
  void ready(int index, TensorView tensor, bool absent, TimePoint at);
  // Commits the step. `mark`: the mark that StreamBoard::finish() returned for it.
  void finish(std::uint64_t mark, TimePoint at);
  // Calls `done` when the step is over, inline if it is already. One waiter at a time.
  void wait(Done done);
  // Calls `done` when these tensors of the finished step hold their result, or, if the step is void, with the cause
  // that wait() will return. A second call replaces the waiter of the first, which ends with kAborted.
  void wait_tensors(std::vector<int> tensors, Done done);
  // Gives the step up on all ranks; later calls belong to the next step. Calls `released` when the memory of the caller
  // is not used any more. In the commit gate it is the next step that is given up: this one may count on other ranks.
  void abort(Status cause, Task released);

  // Contributes zeros to the steps of the other ranks, because the program has no more data. The program must make no
  // call until end_joined() is done. Call between two steps.
  void contribute_zeros();
  // Ends the contribution of zeros, because all ranks have joined: after the steps before `place` the stream continues
  // with step 0 of the attempt of `place`. Calls `done` once, when the program may make calls again, or when the stream
  // has failed.
  void end_joined(const control::StreamPlace& place, Task done);
  // Ends the contribution of zeros with `cause`, because some rank can no longer join.
  void give_up_joined(const Status& cause, Task done);
  bool joined() const { return joined_.joined(); }
  // Returns the place of the next step; nullopt in the middle of one.
  std::optional<control::StreamPlace> place() const;

  // Runs `task` when no operation of the stream uses the memory of the caller.
  void release(Task task);

  void on_aborted(const control::StreamAborted& message);
  void on_flags(const control::StreamFlags& message);
  // Records that a rank has left in order; `cause` explains later failures for want of a peer.
  void note_left(const Status& cause);
  // Ends the stream, because it is closed, or because the job is over and the owner has aborted the collectives. Every
  // wait answers with `cause` from now on.
  void fail(const Status& cause);

  // Reads the residual of a tensor: its elements, float32. Like the methods below it requires that no step is in
  // progress, and reports kInvalidArgument otherwise, for another number of elements, or for a dtype that is never
  // compressed. `done` comes later if the residual is on a GPU; keep `out` until then.
  void residual(int index, std::span<float> out, Done done) const;
  Status set_residual(int index, std::span<const float> in);
  // Reads the residuals of all tensors, one after the other, and clears them. `out` may be empty. Requires float32;
  // returns kUnsupported for residuals on a GPU.
  Status drain_residuals(std::span<float> out);
  // Reads or sets the state of the codec of a tensor, without its residual.
  Status codec_state(int index, std::vector<std::byte>& out) const;
  Status load_codec_state(int index, ConstBytes in);
  // Records the loss of this rank, for policies that weigh ranks by loss; any time.
  void report_loss(double loss) { agreement_->report_loss(loss); }
  // Passes a JSON array to `then`: for each tensor the decision for the next step, its cost and its residual. Any time;
  // `then` comes later if residuals are on a GPU.
  void tensors_json(MoveFunction<void(Result<std::string>)> then) const;
  const DecisionLog& decisions() const { return agreement_->decisions(); }

  StreamId id() const { return id_; }
  const StreamSpec& spec() const { return spec_; }
  // Returns the plan of the step in progress, or of the next one while this one is void.
  const scheduler::Plan& plan() const { return *agreement_->plan(); }
  // Returns the position of this rank, which changes no more after fail(). Requires a commit gate.
  control::StreamReport report() const;
  bool has_commit_gate() const { return traits_.options.commit_gate; }
  std::uint32_t attempt() const { return attempt_; }
  std::uint64_t step() const { return step_; }
  const std::shared_ptr<StreamBoard>& board() const { return board_; }
  std::optional<control::WaitEntry> in_flight() const;
  std::uint64_t progress() const { return progress_; }
  bool idle() const { return in_flight_count_ == 0 && dispatcher_.credit().in_flight() == 0 && unused_->idle(); }
  // Takes the part that answers requests for flags of past steps out of a failed stream, which cannot be used
  // afterwards.
  std::unique_ptr<UnusedParamSync> take_unused_param_sync() { return std::move(unused_); }
  std::string describe() const;

 private:
  enum class Phase : std::uint8_t {
    kOpen,      // ready() and finish() are accepted
    kAborting,  // this rank has given the step up and waits for the coordinator; calls belong to the next step
    kVoid,      // somebody gave the step up; calls are ignored until wait() has returned the cause
    kFailed,    // the job is over
  };

  struct TensorWaiter {
    std::vector<int> tensors;
    Done done;
  };

  void admit(int index);
  void pump();
  void launch(const scheduler::Partition& partition);
  void on_partition(std::uint32_t attempt, int position, net::Traffic traffic, BufferPool::Buffer buffer,
                    const Status& status);
  void launch_compressed(const scheduler::Partition& partition);
  void on_compressed(std::uint32_t attempt, int position, net::Traffic traffic, const Status& status);
  bool arrived(std::uint32_t attempt, const Status& status);
  void end_partition(int position, const Status& decoded);
  void pump_later();
  Status check_between_steps(int index) const;
  Status check_residual(int index, std::size_t numel) const;
  Status check_finite(int index) const;
  void adopt_plan();
  void start_exchange();
  void start_flags();
  void on_flags_done(std::uint32_t attempt, const std::vector<std::uint8_t>& flags, const Status& status);
  void give_up(const Status& cause);
  void cancel_in_flight(const Status& cause);
  void cancel_steps(std::uint64_t from, const Status& cause);
  void forget_cancelled();
  void apply_aborts();
  void begin_attempt(const control::StreamAborted& message);
  void leave_void();
  void reopen();
  void answer();
  JoinedRank::Host zero_steps();
  void submit_zeros();
  void answer_tensors();
  void refuse(Done done);
  void record_results(const scheduler::Partition& partition);
  void publish();
  void publish(int index);
  void open_step();
  void use_sizes_of_nccl();
  DensePath& path_of_step();
  Rank job_rank() const { return deps_.net.job_rank(deps_.net.rank()); }
  Status check_ready(int index, const TensorView& tensor) const;
  bool step_complete() const;
  bool step_over() const { return step_complete() && (!traits_.options.commit_gate || state_.gate_done); }
  void start_gate();
  void leave_gate();
  void abort_behind_gate();
  void count_step();
  // Returns whether results may be used: every rank has finished, and, if ranks exchange flags, it is known which ranks
  // had a gradient.
  bool committed() const { return state_.finished && (flags_on() ? state_.flags_done : state_.commit_done); }
  bool holds_result(int index) const;
  bool flags_on() const;

  struct Traits {
    StreamOptions options;
    bool has_policy = false;  // a policy may change the decisions of tensors
    OnDevice on_device = OnDevice::kNothing;
  };
  // Paths of dense partitions.
  struct Paths {
    Paths(const StreamDeps& deps, HostPath::Scales scales) : host(deps.net, deps.buffers, deps.shared_bytes, scales) {}
    void release_zeros();
    HostPath host;
    std::unique_ptr<DensePath> device;  // nullptr: all gradients go through the memory of the host
    DensePath* current = &host;         // the path of the step in progress
  };
  // Steps that were given up, and errors of the job.
  struct Deviations {
    std::deque<control::StreamAborted> aborts;  // steps given up that this rank has not reached yet
    std::deque<Status> causes;                  // causes that the program has not received yet
    Status failure;                             // cause of the end of the job
    std::optional<control::StreamReport> last;  // position at the failure
    Status left;                                // cause of failures after a rank has left in order
    TimerId verdict;                            // runs while the reason for the loss of a peer is unknown
    bool cancelled = false;                     // some cancelled tags were not forgotten yet
  };
  // A call of abort() in the commit gate; later calls only wait for its end.
  struct Abort {
    Status cause;
    std::vector<Task> released;
  };
  struct Waiters {
    std::function<void(int index)> result;  // see on_result(); may be empty
    Done step;
    std::optional<TensorWaiter> tensors;
    std::vector<Task> released;  // run when in_flight_count_ == 0
    std::deque<Task> next_step;  // calls that belong to the step after the one given up
    std::optional<Abort> behind_gate;
  };

  const StreamId id_;
  const StreamSpec spec_;
  StreamDeps deps_;
  StreamTrace trace_;
  const Traits traits_;
  std::unique_ptr<PlanAgreement> agreement_;
  std::shared_ptr<const scheduler::Plan> plan_;  // the plan of agreement_ at the last step border
  scheduler::Dispatcher dispatcher_;
  const std::shared_ptr<StreamBoard> board_;
  StreamResiduals residuals_;
  Paths paths_;
  int commit_position_ = 0;  // commit point: partitions from this position on start after finish() only

  Phase phase_ = Phase::kOpen;
  std::uint32_t attempt_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t trained_ = 0;  // steps of the training before step 0 of the attempt; equal on all ranks
  StepState state_;
  int in_flight_count_ = 0;  // number of operations, those of steps given up included
  TimerId pump_timer_;
  std::uint64_t progress_ = 0;
  std::unique_ptr<UnusedParamSync> unused_;
  Deviations deviations_;
  Waiters waiters_;
  JoinedRank joined_;
};

}  // namespace sirtaki::engine
