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
#include <map>
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
#include "runtime/engine/device/device_compressor.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/engine/reduction/dense_path.h"
#include "runtime/engine/reduction/reduction.h"
#include "runtime/engine/stream/plan_agreement.h"
#include "runtime/engine/stream/residual_store.h"
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
  // How it travels is not known yet: before use() no step begins, of a rank without more data either.
  void hold() { held_up_ = true; }
  // Before the first step. Null: as it would without. `codes`: of what is compressed, if it is on a GPU.
  void use(std::unique_ptr<DensePath> path, std::unique_ptr<DeviceCompressor> codes);
  // Whether tensors that become ready now are to be where the GPU has them, for the path of use(). It may change behind
  // a step, and when a step is given up.
  bool takes_from_device() const;

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

  // The program has no more data and makes no call until end_stand_in() is done: the stream takes part in the steps of
  // the others with zeros. Allowed between two steps.
  void stand_in();
  // All ranks have joined: after the steps before `place`, goes on with step 0 of its attempt. `done` runs once, when
  // the program's calls are welcome again, or when the stream has failed.
  void end_stand_in(const control::StreamPlace& place, Task done);
  // Not all ranks can join any more.
  void give_up_stand_in(const Status& cause, Task done);
  bool standing_in() const { return standing_in_; }
  // The step that comes; nullopt in the middle of one.
  std::optional<control::StreamPlace> place() const;

  // Runs `task` when no operation of the stream uses the caller's memory.
  void release(Task task);

  void on_aborted(const control::StreamAborted& message);
  void on_flags(const control::StreamFlags& message);
  // A rank left in order; explains what fails for want of a peer.
  void note_left(const Status& cause) { left_.update(cause); }
  // The job is over, and the owner has aborted the collectives; or the stream is closed. Every wait answers with
  // `cause` from now on.
  void fail(const Status& cause);

  // What this rank owes of a tensor (stream_memory.h), all its elements. Between two steps, and so is what follows;
  // kInvalidArgument in the middle of one, for another number of elements, or for a dtype that is never compressed.
  // Where that is on a GPU `done` comes later, else at once; `out` stays until then.
  void residual(int index, std::span<float> out, Done done) const;
  Status set_residual(int index, std::span<const float> in);
  // What it owes of all tensors, one behind the other, all of them float32; it owes nothing any more. Empty: nobody
  // asks what it was. kUnsupported where they are on a GPU.
  Status take_residuals(std::span<float> out);
  // What the tensor's codec remembers beside that.
  Status remembered(int index, std::vector<std::byte>& out) const;
  Status recall(int index, ConstBytes in);
  // This rank's loss, for policies that weigh ranks by it; any time.
  void report_loss(double loss) { keeper_.report_loss(loss); }
  // How each tensor travels from the next step on, what that costs, and what is owed of it. Any time; `then` as
  // residual()'s.
  void tensors_json(MoveFunction<void(Result<std::string>)> then) const;
  const DecisionLog& decisions() const { return keeper_.decisions(); }

  StreamId id() const { return id_; }
  const StreamSpec& spec() const { return spec_; }
  // Of the step in progress; of the next one while this one is void.
  const scheduler::Plan& plan() const { return *keeper_.plan(); }
  std::uint32_t attempt() const { return attempt_; }
  std::uint64_t step() const { return step_; }
  const std::shared_ptr<StreamBoard>& board() const { return board_; }
  std::optional<control::WaitEntry> in_flight() const;
  std::uint64_t progress() const { return progress_; }
  bool idle() const {
    return in_flight_count_ == 0 && dispatcher_.credit().in_flight() == 0 && unused_param_sync_->idle();
  }
  // What others may still ask of steps that are over; for a stream that has failed, which is of no use afterwards.
  std::unique_ptr<UnusedParamSync> take_unused_param_sync() { return std::move(unused_param_sync_); }
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
  Status admit_owed(int index, const scheduler::PlannedTensor& planned);
  void pump();
  void launch(const scheduler::Partition& partition);
  void on_partition(std::uint32_t attempt, int position, BufferPool::Buffer buffer, const Status& status);
  void launch_lossy(const scheduler::Partition& partition);
  void on_lossy(std::uint32_t attempt, int position, const Status& status);
  bool arrived(std::uint32_t attempt, const Status& status);
  void end_partition(int position, const Status& decoded);
  void pump_later();
  Status check_memory(int index) const;
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
  void next_zeros();
  void submit_zeros();
  Result<std::byte*> make_zeros();
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
  bool committed() const { return finished_ && (flags_on() ? flags_done_ : gate_done_); }
  bool holds_result(int index) const;
  bool untouched() const;
  bool flags_on() const;

  const StreamId id_;
  const StreamSpec spec_;
  StreamDeps deps_;
  StreamTrace trace_;
  const bool finite_only_;
  const bool has_policy_;  // that may change how tensors travel
  PlanAgreement keeper_;
  std::shared_ptr<const scheduler::Plan> plan_;  // the keeper's, of the last step border
  scheduler::Dispatcher dispatcher_;
  const std::shared_ptr<StreamBoard> board_;
  ResidualStore memory_;
  HostPath host_path_;
  std::unique_ptr<DensePath> device_path_;   // null: all goes by way of the host's memory
  DensePath* dense_ = &host_path_;           // of the step in progress
  std::unique_ptr<DeviceCompressor> codes_;  // null: compressed tensors are encoded on the CPU
  int gate_ = 0;                             // position from which partitions start after finish() only

  Phase phase_ = Phase::kOpen;
  std::uint32_t attempt_ = 0;
  std::uint64_t step_ = 0;
  bool cancelled_ = false;     // tags of the stream that nobody has forgotten yet
  std::uint64_t trained_ = 0;  // steps of the training before step 0 of the attempt; the same on all ranks
  std::optional<std::pair<std::uint32_t, std::uint64_t>> flags_from_;  // (attempt, step)
  std::unique_ptr<UnusedParamSync> unused_param_sync_;
  std::deque<control::StreamAborted> aborts_;  // of steps this rank has not reached yet
  std::uint64_t progress_ = 0;

  // The step in progress.
  std::vector<TensorView> views_;
  std::vector<std::uint8_t> submitted_;
  std::vector<std::uint8_t> present_;
  std::vector<int> held_;             // absent tensors that wait for the flags
  std::vector<std::size_t> missing_;  // by tensor: slices without a result
  bool finished_ = false;
  bool gate_done_ = false;
  std::uint64_t mark_ = 0;
  bool asked_for_flags_ = false;
  bool flags_started_ = false;
  bool flags_done_ = false;
  // What ranks exchange about plans; nullptr: nothing in this step. The collective holds it, too.
  std::shared_ptr<std::vector<std::int64_t>> exchanged_;
  bool exchange_done_ = false;
  int partitions_started_ = 0;
  int partitions_done_ = 0;
  int in_flight_count_ = 0;
  std::map<int, std::shared_ptr<Reduction>> reductions_;  // by position: compressed partitions in flight
  TimerId pump_timer_;
  TimePoint first_ready_;
  TimePoint waited_since_;

  std::deque<Status> causes_;  // of steps given up that the program has not been told of
  Status failure_;             // of the job
  Status left_;
  TimerId verdict_;                 // while it is not known why a peer is gone
  std::vector<std::uint8_t> used_;  // some rank had a gradient
  Done waiter_;
  std::optional<TensorWaiter> tensor_waiter_;

  static constexpr std::uint32_t kNever = 0xffffffffU;
  bool held_up_ = false;
  bool standing_in_ = false;
  std::uint32_t stand_in_until_ = kNever;  // attempt in which the program goes on
  std::vector<std::size_t> zeros_at_;      // by tensor: its first byte among those of a step without data
  TimerId zeros_timer_;
  Task stood_in_;

  std::vector<Task> released_;  // wait for in_flight_count_ == 0
  std::deque<Task> next_step_;  // calls that belong to the step after the one given up
};

}  // namespace sirtaki::engine
