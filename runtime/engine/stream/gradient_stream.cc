#include "runtime/engine/stream/gradient_stream.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/stream/codec_timing.h"
#include "runtime/engine/stream/stream_plan.h"

namespace sirtaki::engine {
namespace {

scheduler::ReplannerOptions replanner_options(const StreamOptions& options, int ranks) {
  scheduler::ReplannerOptions out;
  out.frozen = !options.replan || ranks == 1;
  out.planner.ranks = ranks;
  out.planner.limits = options.layout;
  out.planner.credit_limit_bytes = options.credit_bytes;
  // Where the program waits for all at once, all are needed at once.
  out.planner.forward = true;
  return out;
}

// Where hosts sum up first, a rank encodes its shares.
void share_costs(const net::HostGroups* groups, scheduler::CodecCosts& costs) {
  if (groups == nullptr) {
    return;
  }
  const auto own = static_cast<std::int64_t>(groups->own.size());
  for (scheduler::CodecCost& cost : costs) {
    cost.encode_ps = cost.encode_ps * own / groups->hosts.shares();
    cost.decode_ps = cost.decode_ps * own / groups->hosts.shares();
  }
}

std::unique_ptr<scheduler::Controller> policy_of(const StreamSpec& spec, const scheduler::PlannerOptions& planner,
                                                 const StreamDeps& deps) {
  return controller_for(spec, planner, std::make_shared<CatalogFacts>(deps.net));
}

// Nothing is encoded, nor rounded to halves.
bool all_as_they_are(const scheduler::Plan& plan) {
  return std::ranges::all_of(plan.tensors(), [](const scheduler::PlannedTensor& tensor) {
    return tensor.decision.codec == CodecId::kNone && !tensor.decision.way().lossy();
  });
}

PlanAgreementOptions keeper_options(const StreamOptions& options, const StreamSpec& spec, const StreamDeps& deps) {
  PlanAgreementOptions out;
  const int exchanging = exchanging_ranks(deps.net);
  out.replanner = replanner_options(options, exchanging);
  if (!out.replanner.frozen) {
    out.controller = policy_of(spec, out.replanner.planner, deps);
  }
  if (out.controller) {
    out.codec_costs = time_codecs(deps.loop, exchanging);
    share_costs(deps.net.host_groups(), out.codec_costs);
  }
  out.rank = deps.net.rank();
  out.ranks = deps.net.size();
  return out;
}

}  // namespace

GradientStream::GradientStream(StreamId id, StreamSpec spec, const std::shared_ptr<const scheduler::Plan>& plan,
                               const StreamOptions& options, StreamDeps deps)
    : id_(id),
      spec_(std::move(spec)),
      deps_(deps),
      trace_(deps.trace, spec_.name),
      finite_only_(options.finite_only),
      has_policy_(policy_of(spec_, replanner_options(options, exchanging_ranks(deps.net)).planner, deps) != nullptr),
      keeper_(spec_.name, plan, spec_.order, keeper_options(options, spec_, deps),
              {deps.loop, deps.trace, deps.stats, deps.log}),
      dispatcher_(options.credit_bytes),
      board_(std::make_shared<StreamBoard>(spec_.tensors.size())),
      memory_(spec_.tensors, deps.net.rank(), deps.net.size(), deps.net.host_groups()),
      host_path_(deps.net, deps.buffers, deps.lent_bytes, HostPath::Scales{spec_.prescale, spec_.postscale}),
      trained_(spec_.first_step),
      unused_param_sync_(std::make_unique<UnusedParamSync>(id, spec_.tensors.size(), deps.net)) {
  open_step();
}

GradientStream::OnDevice GradientStream::on_device() const {
  if (spec_.prescale != 1.0 || spec_.postscale != 1.0 || spec_.reduce_op == ReduceOp::kAdasum || finite_only_ ||
      (has_policy_ && !all_as_they_are(*plan_))) {
    return OnDevice::kNothing;
  }
  bool codes = false;
  bool halves = false;
  for (const scheduler::PlannedTensor& tensor : plan_->tensors()) {
    const bool lossy = tensor.decision.way().lossy();
    const bool half = !lossy && tensor.decision.codec != CodecId::kNone;
    if ((lossy && !DeviceCompressor::can(tensor, deps_.net.size())) || (half && tensor.dtype != DType::kF32)) {
      return OnDevice::kNothing;
    }
    codes = codes || lossy;
    halves = halves || half;
  }
  if (!codes) {
    return OnDevice::kDense;
  }
  if (halves) {
    return OnDevice::kNothing;  // they would go through the host with the payloads
  }
  return deps_.net.host_groups() != nullptr ? OnDevice::kCodesByHost : OnDevice::kCodes;
}

void GradientStream::use(std::unique_ptr<DensePath> path, std::unique_ptr<DeviceCompressor> codes) {
  SRT_CHECK(untouched() && in_flight_count_ == 0);
  if (path) {
    device_path_ = std::move(path);
    dense_ = &path_of_step();
    dense_->adopt(*plan_);
  }
  codes_ = std::move(codes);
  if (std::exchange(held_up_, false) && standing_in_ && zeros_timer_ == TimerId()) {
    next_zeros();
  }
}

// A policy's first step behind one that was given up goes by way of the host's memory, though its plan is the first one
// again: some of it may have been fetched for a compressed step that is none any more.
DensePath& GradientStream::path_of_step() {
  const bool by_plan = !has_policy_ || ((attempt_ == 0 || step_ > 0) && all_as_they_are(*plan_));
  if (device_path_ && by_plan) {
    return *device_path_;
  }
  return host_path_;
}

bool GradientStream::takes_from_device() const {
  return device_path_ && (!has_policy_ || (phase_ != Phase::kAborting && dense_ == device_path_.get()));
}

void GradientStream::open_step() {
  const bool other_plan = plan_ != keeper_.plan();
  if (other_plan) {
    adopt_plan();
  }
  const DensePath* const before = std::exchange(dense_, &path_of_step());
  if (dense_ != before) {
    keeper_.link_changed();
  }
  if (other_plan || dense_ != before) {
    dense_->adopt(*plan_);
  }
  const std::size_t count = spec_.tensors.size();
  views_.assign(count, {});
  submitted_.assign(count, 0);
  present_.assign(count, 1);
  reductions_.clear();
  trace_.begin_step(plan_);
  held_.clear();
  used_.assign(count, 1);
  missing_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    missing_[i] = plan_->partitions_of(static_cast<int>(i)).size();
  }
  finished_ = asked_for_flags_ = flags_started_ = flags_done_ = false;
  exchanged_.reset();
  exchange_done_ = false;
  gate_done_ = plan_->partitions().empty();
  partitions_started_ = partitions_done_ = 0;
  first_ready_ = {};
  waited_since_ = {};
  dispatcher_.reset();
}

// ---- what the program does ----

Status GradientStream::check_ready(int index, const TensorView& tensor) const {
  const auto i = static_cast<std::size_t>(index);
  const scheduler::PlannedTensor& planned = plan_->tensors()[i];
  const Blame blame{job_rank(), planned.name};
  if (tensor.numel != planned.numel || tensor.dtype != planned.dtype) {
    return {Code::kMismatch,
            "tensor '" + planned.name + "' of stream '" + spec_.name + "' has " + std::to_string(tensor.numel) + " " +
                std::string(dtype_name(tensor.dtype)) + " elements on rank " + std::to_string(job_rank()) +
                " but was registered with " + std::to_string(planned.numel) + " " +
                std::string(dtype_name(planned.dtype)) +
                ". Likely cause: the parameter was replaced or resized; create the optimizer anew",
            blame};
  }
  if (submitted_[i] != 0) {
    return {Code::kInvalidArgument,
            "tensor '" + planned.name + "' of stream '" + spec_.name + "' became ready twice in one step on rank " +
                std::to_string(job_rank()) +
                ". Likely cause: backward ran twice; set backward_passes_per_step or call step() between",
            blame};
  }
  return {};
}

void GradientStream::ready(int index, TensorView tensor, bool absent, TimePoint at) {
  ++progress_;
  if (phase_ == Phase::kAborting) {
    next_step_.emplace_back([this, index, tensor, absent, at] { ready(index, tensor, absent, at); });
    return;
  }
  if (phase_ != Phase::kOpen) {
    return;
  }
  if (const Status status = check_ready(index, tensor); !status.ok()) {
    give_up(status);
    return;
  }
  const auto i = static_cast<std::size_t>(index);
  if (first_ready_ == TimePoint()) {
    first_ready_ = at;
  }
  keeper_.ready(index, at);
  views_[i] = tensor;
  submitted_[i] = 1;
  present_[i] = absent ? 0 : 1;
  // An empty tensor is in no partition, so holding it back would not keep the others from completing the step.
  if (absent && !flags_on() && tensor.numel != 0) {
    held_.push_back(index);
    if (!asked_for_flags_) {
      asked_for_flags_ = true;
      deps_.control.send(control::StreamUnused{id_, attempt_, step_});
    }
    return;
  }
  admit(index);
  pump();
}

void GradientStream::admit(int index) {
  const scheduler::PlannedTensor& planned = plan_->tensors()[static_cast<std::size_t>(index)];
  if (planned.numel == 0) {
    return;
  }
  if (const Status finite = check_finite(index); !finite.ok()) {
    give_up(finite);
    return;
  }
  if (const Status owed = admit_owed(index, planned); !owed.ok()) {
    give_up(owed);
    return;
  }
  auto ready = dispatcher_.tensor_ready(index);
  if (!ready) {
    give_up(ready.status());
    return;
  }
  for (const int position : *ready) {
    trace_.ready(position);
  }
}

void GradientStream::finish(std::uint64_t mark, TimePoint at) {
  ++progress_;
  if (phase_ == Phase::kAborting) {
    next_step_.emplace_back([this, mark, at] { finish(mark, at); });
    return;
  }
  if (phase_ != Phase::kOpen) {
    return;
  }
  const auto missing = std::find(submitted_.begin(), submitted_.end(), 0);
  if (missing != submitted_.end()) {
    const std::string& name = plan_->tensors()[static_cast<std::size_t>(missing - submitted_.begin())].name;
    give_up({Code::kInvalidArgument,
             "stream '" + spec_.name + "': the step was finished before tensor '" + name + "' was submitted",
             {job_rank(), name}});
    return;
  }
  finished_ = true;
  mark_ = mark;
  keeper_.finished(at);
  if (flags_on()) {
    start_flags();
  }
  pump();
  start_exchange();
  publish();
  answer();
}

void GradientStream::wait(Done done) {
  SRT_CHECK(!waiter_);
  if (phase_ == Phase::kOpen && !finished_) {
    refuse(std::move(done));
    return;
  }
  waiter_ = std::move(done);
  waited_since_ = deps_.loop.now();
  answer();
}

void GradientStream::wait_tensors(std::vector<int> tensors, Done done) {
  if (phase_ == Phase::kAborting) {
    next_step_.emplace_back([this, tensors = std::move(tensors), done = std::move(done)]() mutable {
      wait_tensors(std::move(tensors), std::move(done));
    });
    return;
  }
  if (phase_ == Phase::kOpen && !finished_) {
    refuse(std::move(done));
    return;
  }
  std::optional<TensorWaiter> before = std::exchange(tensor_waiter_, TensorWaiter{std::move(tensors), std::move(done)});
  if (before) {
    before->done({Code::kAborted, "stream '" + spec_.name + "': another wait for tensors took the place of this one"});
  }
  answer_tensors();
}

void GradientStream::refuse(Done done) {
  deps_.loop.post([done = std::move(done), name = spec_.name]() mutable {
    done(invalid_argument("stream '" + name + "' was waited for before its step was finished"));
  });
}

void GradientStream::abort(Status cause, Task released) {
  if (phase_ == Phase::kAborting) {
    // The step after the one given up is given up, too; the calls that wait for its turn hold the caller's memory.
    next_step_.emplace_back([this, cause = std::move(cause), released = std::move(released)]() mutable {
      abort(std::move(cause), std::move(released));
    });
    return;
  }
  released_.push_back(std::move(released));
  give_up(cause);
  if (phase_ == Phase::kVoid) {
    // The program knows already: what it submits from here on belongs to the next step.
    phase_ = Phase::kAborting;
    if (tensor_waiter_) {
      released_.push_back([done = std::move(tensor_waiter_->done), cause]() mutable { done(cause); });
      tensor_waiter_.reset();
    }
    leave_void();
  }
  answer();
}

// ---- completion ----

// Nothing of the step has happened on this rank.
bool GradientStream::untouched() const {
  return first_ready_ == TimePoint() && !finished_;
}

bool GradientStream::step_complete() const {
  return finished_ && held_.empty() && partitions_done_ == static_cast<int>(plan_->partitions().size()) &&
         (!flags_on() || flags_done_) && (!exchanged_ || exchange_done_);
}

bool GradientStream::holds_result(int index) const {
  return committed() && missing_[static_cast<std::size_t>(index)] == 0;
}

void GradientStream::record_results(const scheduler::Partition& partition) {
  for (const scheduler::Slice& slice : partition.slices) {
    const auto i = static_cast<std::size_t>(slice.tensor);
    if (--missing_[i] == 0 && committed()) {
      publish(slice.tensor);
    }
  }
  if (partition.position == gate_) {
    gate_done_ = true;
    publish();
  }
}

// What was reduced before the program might use it.
void GradientStream::publish() {
  if (!committed()) {
    return;
  }
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    if (missing_[i] == 0) {
      publish(static_cast<int>(i));
    }
  }
}

void GradientStream::publish(int index) {
  const auto i = static_cast<std::size_t>(index);
  const scheduler::Decision& decision = plan_->tensors()[i].decision;
  board_->publish(index, mark_, {used_[i] != 0, corrected_momentum(decision.codec, decision.params) != 0});
}

void GradientStream::answer_tensors() {
  if (!tensor_waiter_) {
    return;
  }
  Status status;
  if (phase_ == Phase::kOpen) {
    const std::vector<int>& tensors = tensor_waiter_->tensors;
    if (!std::all_of(tensors.begin(), tensors.end(), [this](int index) { return holds_result(index); })) {
      return;
    }
  } else if (in_flight_count_ != 0 || (phase_ != Phase::kFailed && causes_.empty())) {
    return;
  } else {
    status = phase_ == Phase::kFailed ? failure_ : causes_.front();
  }
  Done done = std::move(tensor_waiter_->done);
  tensor_waiter_.reset();
  done(std::move(status));
}

// Tells whoever waits, when there is something to tell and no operation uses the caller's memory any more.
void GradientStream::answer() {
  answer_tensors();
  if (in_flight_count_ != 0) {
    return;
  }
  for (Task& task : std::exchange(released_, {})) {
    task();
  }
  if (!waiter_) {
    return;
  }
  if (phase_ == Phase::kOpen && step_complete()) {
    const TimePoint now = deps_.loop.now();
    deps_.steps.add();
    deps_.step_time.add(now - first_ready_);
    deps_.exposed.add(now - waited_since_);
    trace_.end_step(waited_since_, *board_);
    if (!flags_on()) {
      unused_param_sync_->completed(attempt_, step_, standing_in_);
    }
    forget_cancelled();
    keeper_.told(*board_, waited_since_, now);
    if (exchanged_) {
      keeper_.settle(step_, *exchanged_);
    }
    ++step_;
    open_step();
    Done waiter = std::exchange(waiter_, {});
    const std::uint64_t done = step_ - 1;
    apply_aborts();
    waiter(Status());
    keeper_.consider(done);
  } else if (phase_ == Phase::kVoid && !causes_.empty()) {
    const Status cause = std::move(causes_.front());
    causes_.pop_front();
    reopen();
    Done waiter = std::exchange(waiter_, {});
    apply_aborts();
    waiter(cause);
  } else if (phase_ == Phase::kFailed) {
    std::exchange(waiter_, {})(failure_);
  }
}

void GradientStream::release(Task task) {
  released_.push_back(std::move(task));
  answer();
}

std::optional<control::WaitEntry> GradientStream::in_flight() const {
  // A step that only the program's own wait is missing from needs nothing of other ranks.
  const bool over = in_flight_count_ == 0 && step_complete();
  if (phase_ != Phase::kOpen || !finished_ || standing_in_ || over) {
    return std::nullopt;
  }
  control::WaitEntry entry;
  entry.kind = control::WaitKind::kStreamStep;
  entry.name = spec_.name;
  entry.use = (static_cast<std::uint64_t>(attempt_) << 32) | (step_ & 0xffffffffU);
  return entry;
}

std::optional<control::StreamPlace> GradientStream::place() const {
  // Behind a step that the program itself has given up, calls that have come are the next step's.
  const bool between = phase_ == Phase::kAborting ? next_step_.empty() : untouched();
  return between && !waiter_ ? std::optional(control::StreamPlace{id_, attempt_, step_}) : std::nullopt;
}

std::string GradientStream::describe() const {
  static constexpr const char* kPhases[] = {"open", "aborting", "void", "failed"};
  return "stream '" + spec_.name + "' " + kPhases[static_cast<std::size_t>(phase_)] + ", attempt " +
         std::to_string(attempt_) + ", step " + std::to_string(step_) + ", plan " + std::to_string(plan_->version()) +
         (finished_ ? ", finished" : "") + ", " + std::to_string(partitions_done_) + " of " +
         std::to_string(plan_->partitions().size()) + " partitions done, " + std::to_string(in_flight_count_) +
         " in flight, " + std::to_string(held_.size()) + " tensors held back" + (standing_in_ ? ", standing in" : "") +
         (waiter_ ? ", waited for" : "") + (tensor_waiter_ ? ", tensors waited for" : "");
}

}  // namespace sirtaki::engine
