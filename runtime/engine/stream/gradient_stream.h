// Stream: the tensors of one optimizer, reduced every step by a Plan that all ranks share.
//
// In the steady state no message is exchanged: a partition starts when all its tensors are ready and it is the next in
// the plan's order, and its tag is (stream, attempt, position, step) on every rank.
//
// One step:  ready(i) ... finish(), [wait_tensors() ...,] wait() -> the result; the next step opens when wait() has
// answered. finish() commits: the partition that holds the first part of the tensor expected last, and what follows it,
// start only then. Once that partition is reduced every rank has finished, so no rank uses a result, of a tensor or of
// the step, that another gives up before its finish(). The gate costs nothing: that tensor is ready just before.
// Deviations go through the coordinator and are the same for all ranks:
//   - a rank gives the step up (wrong shape, an error, abort()): StreamAborted ends what is in flight everywhere, each
//     rank's wait() returns the cause, and the stream goes on with step 0 of the next attempt;
//   - a rank has tensors without a gradient (absent): it holds them back until StreamFlags has told all ranks to
//     exchange who has what, in this step and from then on.
// The plan changes at step borders, on all ranks alike (plan_keeper.h).
// stream.cc: the program's calls and the end of a step; stream_pipeline.cc: a partition's way; stream_lossy.cc: that of
// a compressed one, and what this rank owes; stream_deviations.cc;
// stream_exchange.cc: changes of the plan; stream_stand_in.cc: a rank without more data.
// Loop thread; owned by Engine.
#pragma once

#include <cstdint>
#include <deque>
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
#include "runtime/control/messages.h"
#include "runtime/engine/common/buffer_pool.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/common/stream_board.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/engine/reduction/dense_path.h"
#include "runtime/engine/stream/joined_rank.h"
#include "runtime/engine/stream/plan_agreement.h"
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
};

// What a stream works with; all outlive it.
struct StreamDeps {
  Loop& loop;
  net::Collectives& net;
  ControlLink& control;
  Trace& trace;
  BufferPool& buffers;
  Stats& stats;
  Logger* log;  // may be nullptr
  Counter& steps;
  Counter& raw_bytes;    // of gradients
  Counter& lent_bytes;   // packed into memory that other ranks can read
  Counter& wire_bytes;   // of the same, as plans count them: of the allreduce that costs the network as much
  Histogram& step_time;  // first tensor ready to step done
  Histogram& exposed;    // wait() called to step done
};

class GradientStream {
 public:
  GradientStream(StreamId id, StreamSpec spec, const std::shared_ptr<const scheduler::Plan>& plan,
                 const StreamOptions& options, StreamDeps deps);
  ~GradientStream();
  GradientStream(const GradientStream&) = delete;
  GradientStream& operator=(const GradientStream&) = delete;

  // What a GPU can do for it; the same on all ranks. In all steps, but where a policy may change how tensors travel:
  // there in those whose plan leaves all elements as they are, if the first one does. Where gradients are scaled or
  // looked at, nothing.
  enum class OnDevice : std::uint8_t {
    kNothing,
    kDense,        // its elements travel, as they are or as halves, over collectives of the GPU's memory
    kCodes,        // some of it is encoded there
    kCodesByHost,  // the same, where the GPUs of a host sum up over NCCL first
  };
  OnDevice on_device() const;
  // Blocks the start of steps, those of a joined rank included, until set_path().
  void block_start() { joined_.block_start(); }
  // Sets the path of dense partitions on a GPU, and the compressor of the others; nullptr: through the memory of the
  // host. Call before the first step.
  void set_path(std::unique_ptr<DensePath> path, std::unique_ptr<DeviceCompressor> compressor);
  // Returns whether tensors that become ready now must stay in the memory of the GPU, for the path of set_path(). May
  // change after a step, and when a step is given up.
  bool uses_device_memory() const;

  // `at`: when the program said so.
  void ready(int index, TensorView tensor, bool absent, TimePoint at);
  // `mark`: the board's, of this step.
  void finish(std::uint64_t mark, TimePoint at);
  // Answers when the step is over: at once if it is. One waiter at a time.
  void wait(Done done);
  // Answers when these tensors of the finished step hold their result, or when the step is void: with the cause that
  // wait() will tell. A call that comes while another waits takes its place; the other ends with kAborted.
  void wait_tensors(std::vector<int> tensors, Done done);
  // Gives the step up on all ranks; calls that follow belong to the next step. `released` runs when the caller's memory
  // is no longer used.
  void abort(Status cause, Task released);

  // Contributes zeros to the steps of the other ranks, because the program has no more data. The program must make no
  // call until end_joined() is done. Call between two steps.
  void contribute_zeros();
  // All ranks have joined: after the steps before `place`, continues with step 0 of its attempt. Calls `done` once,
  // when the program may make calls again, or when the stream has failed.
  void end_joined(const control::StreamPlace& place, Task done);
  // Ends the contribution of zeros with `cause`, because some rank can no longer join.
  void give_up_joined(const Status& cause, Task done);
  bool joined() const { return joined_.joined(); }
  // The step that comes; nullopt in the middle of one.
  std::optional<control::StreamPlace> place() const;

  // Runs `task` when no operation of the stream uses the caller's memory.
  void release(Task task);

  void on_aborted(const control::StreamAborted& message);
  void on_flags(const control::StreamFlags& message);
  // A rank left in order; explains what fails for want of a peer.
  void note_left(const Status& cause) { deviations_.left.update(cause); }
  // The job is over, and the owner has aborted the collectives; or the stream is closed. Every wait answers with
  // `cause` from now on.
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
  // This rank's loss, for policies that weigh ranks by it; any time.
  void report_loss(double loss) { agreement_.report_loss(loss); }
  // Passes a JSON array to `then`: for each tensor the decision for the next step, its cost and its residual. Any time;
  // `then` comes later if residuals are on a GPU.
  void tensors_json(MoveFunction<void(Result<std::string>)> then) const;
  const DecisionLog& decisions() const { return agreement_.decisions(); }

  StreamId id() const { return id_; }
  const StreamSpec& spec() const { return spec_; }
  // Of the step in progress; of the next one while this one is void.
  const scheduler::Plan& plan() const { return *agreement_.plan(); }
  std::uint32_t attempt() const { return attempt_; }
  std::uint64_t step() const { return step_; }
  const std::shared_ptr<StreamBoard>& board() const { return board_; }
  std::optional<control::WaitEntry> in_flight() const;
  std::uint64_t progress() const { return progress_; }
  bool idle() const { return in_flight_count_ == 0 && dispatcher_.credit().in_flight() == 0 && unused_->idle(); }
  // What others may still ask of steps that are over; for a stream that has failed, which is of no use afterwards.
  std::unique_ptr<UnusedParamSync> take_unused_param_sync() { return std::move(unused_); }
  std::string describe() const;

 private:
  enum class Phase : std::uint8_t {
    kOpen,      // takes ready() and finish()
    kAborting,  // this rank has given the step up and waits for the coordinator; calls belong to the next step
    kVoid,      // somebody gave the step up; calls are ignored until wait() has told why
    kFailed,    // the job is over
  };

  struct TensorWaiter {
    std::vector<int> tensors;
    Done done;
  };

  void admit(int index);
  void pump();
  void launch(const scheduler::Partition& partition);
  void on_partition(std::uint32_t attempt, int position, BufferPool::Buffer buffer, const Status& status);
  void launch_compressed(const scheduler::Partition& partition);
  void on_compressed(std::uint32_t attempt, int position, const Status& status);
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
  DensePath& path_of_step();
  Rank job_rank() const { return deps_.net.job_rank(deps_.net.rank()); }
  Status check_ready(int index, const TensorView& tensor) const;
  bool step_complete() const;
  // Results may be used: every rank has finished, and who had a gradient is known if it has to be.
  bool committed() const { return state_.finished && (flags_on() ? state_.flags_done : state_.gate_done); }
  bool holds_result(int index) const;
  bool flags_on() const;

  // The paths of dense partitions.
  struct Paths {
    Paths(const StreamDeps& deps, HostPath::Scales scales) : host(deps.net, deps.buffers, deps.lent_bytes, scales) {}
    void release_zeros();
    HostPath host;
    std::unique_ptr<DensePath> device;  // nullptr: all gradients go through the memory of the host
    DensePath* current = &host;         // of the step in progress
  };
  // Steps that were given up, and errors of the job.
  struct Deviations {
    std::deque<control::StreamAborted> aborts;  // of steps that this rank has not reached yet
    std::deque<Status> causes;                  // of steps given up that the program has not received yet
    Status failure;                             // of the job
    Status left;                                // a rank that left in order
    TimerId verdict;                            // runs while the reason for the loss of a peer is unknown
    bool cancelled = false;                     // there are cancelled tags that were not forgotten yet
  };
  struct Waiters {
    Done step;
    std::optional<TensorWaiter> tensors;
    std::vector<Task> released;  // wait for in_flight_count_ == 0
    std::deque<Task> next_step;  // calls that belong to the step after the one given up
  };

  const StreamId id_;
  const StreamSpec spec_;
  StreamDeps deps_;
  StreamTrace trace_;
  const bool finite_only_;
  const bool has_policy_;  // which may change the decisions of tensors
  PlanAgreement agreement_;
  std::shared_ptr<const scheduler::Plan> plan_;  // the plan of agreement_ at the last step border
  scheduler::Dispatcher dispatcher_;
  const std::shared_ptr<StreamBoard> board_;
  StreamResiduals residuals_;
  Paths paths_;
  int gate_ = 0;  // position from which partitions start after finish() only

  Phase phase_ = Phase::kOpen;
  std::uint32_t attempt_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t trained_ = 0;  // steps of the training before step 0 of the attempt; equal on all ranks
  StepState state_;
  int in_flight_count_ = 0;  // operations, those of steps given up included
  TimerId pump_timer_;
  std::uint64_t progress_ = 0;
  std::unique_ptr<UnusedParamSync> unused_;
  Deviations deviations_;
  Waiters waiters_;
  JoinedRank joined_;
};

}  // namespace sirtaki::engine
