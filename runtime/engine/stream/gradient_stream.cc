#include "runtime/engine/stream/gradient_stream.h"

#include <algorithm>
#include <utility>

#include "kernels/finite/finite.h"
#include "runtime/base/check.h"
#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine {
namespace {

// Returns whether the plan neither encodes elements nor rounds them to halves.
bool all_unchanged(const scheduler::Plan& plan) {
  return std::ranges::all_of(plan.tensors(), [](const scheduler::PlannedTensor& tensor) {
    return tensor.decision.codec == CodecId::kNone && !tensor.decision.format().compressed();
  });
}

PlanAgreementOptions agreement_options(const StreamOptions& options, StreamStart& start, const net::Collectives& net) {
  PlanAgreementOptions out;
  out.replanner.planner = planner_options(options, CatalogFacts(net));
  out.replanner.frozen = !options.replan || out.replanner.planner.ranks == 1;
  if (!out.replanner.frozen) {
    out.controller = std::move(start.controller);
  }
  out.codec_costs = start.codec_costs;
  out.rank = net.rank();
  out.ranks = net.size();
  return out;
}

std::unique_ptr<PlanAgreement> make_agreement(const StreamSpec& spec, StreamStart& start, const StreamOptions& options,
                                              const StreamDeps& deps) {
  return std::make_unique<PlanAgreement>(spec.name, start.plan, spec.order, agreement_options(options, start, deps.net),
                                         PlanAgreementDeps{deps.loop, deps.trace, deps.stats, deps.log, &deps.net});
}

GradientStream::OnDevice on_device_with(const StreamSpec& spec, const StreamStart& start, bool finite_only,
                                        const net::Collectives& net) {
  using OnDevice = GradientStream::OnDevice;
  const scheduler::Plan& plan = *start.unmeasured;
  if (spec.prescale != 1.0 || spec.postscale != 1.0 || spec.reduce_op == ReduceOp::kAdasum || finite_only ||
      (start.controller != nullptr && !all_unchanged(plan))) {
    return OnDevice::kNothing;
  }
  bool codes = false;
  bool halves = false;
  for (const scheduler::PlannedTensor& tensor : plan.tensors()) {
    const bool compressed = tensor.decision.format().compressed();
    const bool half = !compressed && tensor.decision.codec != CodecId::kNone;
    if ((compressed && !DeviceCompressor::supports(tensor, net.size())) || (half && tensor.dtype != DType::kF32)) {
      return OnDevice::kNothing;
    }
    codes = codes || compressed;
    halves = halves || half;
  }
  if (!codes) {
    return OnDevice::kDense;
  }
  if (halves) {
    return OnDevice::kNothing;  // halves would go through host memory with the payloads
  }
  return net.host_groups() != nullptr ? OnDevice::kCodesByHost : OnDevice::kCodes;
}

}  // namespace

scheduler::PlannerOptions planner_options(const StreamOptions& options, const CatalogFacts& facts) {
  scheduler::PlannerOptions out;
  out.ranks = facts.exchanging();
  out.ranks_per_host = facts.ranks_per_host();
  out.limits = options.layout;
  out.credit_limit_bytes = options.credit_bytes;
  out.exchange_bytes = options.exchange_bytes;
  // A program that waits for all tensors at once needs all of them at once.
  out.forward = true;
  return out;
}

GradientStream::GradientStream(StreamId id, StreamSpec spec, StreamStart start, const StreamOptions& options,
                               StreamDeps deps)
    : id_(id),
      spec_(std::move(spec)),
      deps_(deps),
      trace_(deps.trace, spec_.name),
      traits_{options, start.controller != nullptr, on_device_with(spec_, start, options.finite_only, deps.net)},
      agreement_(make_agreement(spec_, start, options, deps)),
      dispatcher_(options.credit_bytes),
      board_(std::make_shared<StreamBoard>(spec_.tensors.size())),
      residuals_(spec_, deps.net),
      paths_(deps, HostPath::Scales{spec_.prescale, spec_.postscale}),
      trained_(spec_.first_step),
      unused_(std::make_unique<UnusedParamSync>(id, spec_.tensors.size(), deps.net)),
      joined_(deps.loop, zero_steps()) {
  open_step();
}

GradientStream::~GradientStream() {
  deps_.loop.cancel(deviations_.verdict);
  deps_.loop.cancel(pump_timer_);
}

void GradientStream::set_path(std::unique_ptr<DensePath> path, std::unique_ptr<DeviceCompressor> compressor) {
  SRT_CHECK(state_.untouched() && in_flight_count_ == 0);
  if (path) {
    paths_.device = std::move(path);
    if (compressor == nullptr && !traits_.has_policy) {
      use_sizes_of_nccl();
    } else {
      paths_.current = &path_of_step();
      paths_.current->adopt(*plan_);
    }
  }
  residuals_.set_compressor(std::move(compressor));
  joined_.allow_start();
}

// NCCL costs a launch for each operation, and nothing passes another one there, so small partitions gain nothing. The
// ranks have compared the tensors and the options, and know alike that NCCL is used.
void GradientStream::use_sizes_of_nccl() {
  StreamOptions options = traits_.options;
  options.layout.partition_bytes = options.nccl_partition_bytes;
  options.credit_bytes = options.nccl_credit_bytes;
  auto plan = scheduler::Plan::build(plan_->tensors(), spec_.order, options.layout, plan_->version());
  SRT_CHECK(plan);
  StreamStart start{*plan, *plan};
  agreement_ = make_agreement(spec_, start, options, deps_);
  dispatcher_ = scheduler::Dispatcher(options.credit_bytes);
  open_step();
}

// Under a policy, the first step after one that was given up goes through host memory, although its plan is the first
// one again: some gradients may already have been copied there for the compressed step that is void now.
DensePath& GradientStream::path_of_step() {
  const bool by_plan = !traits_.has_policy || ((attempt_ == 0 || step_ > 0) && all_unchanged(*plan_));
  if (paths_.device && by_plan) {
    return *paths_.device;
  }
  return paths_.host;
}

bool GradientStream::uses_device_memory() const {
  return paths_.device &&
         (!traits_.has_policy || (phase_ != Phase::kAborting && paths_.current == paths_.device.get()));
}

void GradientStream::open_step() {
  const bool other_plan = plan_ != agreement_->plan();
  if (other_plan) {
    adopt_plan();
  }
  const DensePath* const before = std::exchange(paths_.current, &path_of_step());
  if (paths_.current != before) {
    agreement_->link_changed();
  }
  if (other_plan || paths_.current != before) {
    paths_.current->adopt(*plan_);
  }
  state_ = StepState(*plan_);
  trace_.begin_step(plan_);
  dispatcher_.reset();
}

// ---- calls of the program ----

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
  if (state_.submitted[i] != 0) {
    return {Code::kInvalidArgument,
            "tensor '" + planned.name + "' of stream '" + spec_.name + "' became ready twice in one step on rank " +
                std::to_string(job_rank()) +
                ". Likely cause: backward ran twice; set backward_passes_per_step or call step() between",
            blame};
  }
  return {};
}

Status GradientStream::check_finite(int index) const {
  const TensorView& view = state_.views[static_cast<std::size_t>(index)];
  if (!traits_.options.finite_only || kernels::all_finite(view.dtype, view.bytes().data(), view.numel)) {
    return {};
  }
  const std::string& name = plan_->tensors()[static_cast<std::size_t>(index)].name;
  return {Code::kNonFinite,
          "the gradient of tensor '" + name + "' of stream '" + spec_.name + "' holds NaN or infinity on rank " +
              std::to_string(job_rank()) +
              ". Likely cause: the loss diverged or a half overflowed; lower the learning rate, clip gradients, or let "
              "it pass with compression.nonfinite=propagate",
          {job_rank(), name}};
}

void GradientStream::ready(int index, TensorView tensor, bool absent, TimePoint at) {
  ++progress_;
  if (phase_ == Phase::kAborting) {
    waiters_.next_step.emplace_back([this, index, tensor, absent, at] { ready(index, tensor, absent, at); });
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
  if (state_.first_ready == TimePoint()) {
    state_.first_ready = at;
  }
  agreement_->ready(index, at);
  state_.views[i] = tensor;
  state_.submitted[i] = 1;
  state_.present[i] = absent ? 0 : 1;
  // An empty tensor is in no partition, so holding it back would not keep the others from completing the step.
  if (absent && !flags_on() && tensor.numel != 0) {
    state_.held.push_back(index);
    if (!state_.asked_for_flags) {
      state_.asked_for_flags = true;
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
  const TensorView& gradient = state_.views[static_cast<std::size_t>(index)];
  if (const Status admitted = residuals_.admit(index, planned, gradient, *paths_.current, trained_ + step_);
      !admitted.ok()) {
    give_up(admitted);
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
    waiters_.next_step.emplace_back([this, mark, at] { finish(mark, at); });
    return;
  }
  if (phase_ != Phase::kOpen) {
    return;
  }
  const auto missing = std::find(state_.submitted.begin(), state_.submitted.end(), 0);
  if (missing != state_.submitted.end()) {
    const std::string& name = plan_->tensors()[static_cast<std::size_t>(missing - state_.submitted.begin())].name;
    give_up({Code::kInvalidArgument,
             "stream '" + spec_.name + "': the step was finished before tensor '" + name + "' was submitted",
             {job_rank(), name}});
    return;
  }
  state_.finished = true;
  state_.mark = mark;
  agreement_->finished(at);
  if (flags_on()) {
    start_flags();
  }
  pump();
  start_exchange();
  publish();
  answer();
}

void GradientStream::abort(Status cause, Task released) {
  if (phase_ == Phase::kAborting) {
    // The step after the one given up is given up, too; the calls that wait for its turn hold memory of the caller.
    waiters_.next_step.emplace_back([this, cause = std::move(cause), released = std::move(released)]() mutable {
      abort(std::move(cause), std::move(released));
    });
    return;
  }
  if (phase_ == Phase::kOpen && state_.gate_started) {
    if (!waiters_.behind_gate) {
      waiters_.behind_gate = Abort{std::move(cause), {}};
    }
    waiters_.behind_gate->released.push_back(std::move(released));
    answer();
    return;
  }
  waiters_.released.push_back(std::move(released));
  give_up(cause);
  if (phase_ == Phase::kVoid) {
    // The program knows the cause already: its later calls belong to the next step.
    phase_ = Phase::kAborting;
    if (waiters_.tensors) {
      waiters_.released.push_back([done = std::move(waiters_.tensors->done), cause]() mutable { done(cause); });
      waiters_.tensors.reset();
    }
    leave_void();
  }
  answer();
}

std::optional<control::WaitEntry> GradientStream::in_flight() const {
  // A step that lacks only the wait of its own program needs nothing of other ranks.
  const bool over = in_flight_count_ == 0 && step_over();
  if (phase_ != Phase::kOpen || !state_.finished || joined_.joined() || over) {
    return std::nullopt;
  }
  control::WaitEntry entry;
  entry.kind = control::WaitKind::kStreamStep;
  entry.name = spec_.name;
  entry.use = (static_cast<std::uint64_t>(attempt_) << 32) | (step_ & 0xffffffffU);
  return entry;
}

std::optional<control::StreamPlace> GradientStream::place() const {
  // After a step that the program itself has given up, calls that wait belong to the next step.
  const bool between = phase_ == Phase::kAborting ? waiters_.next_step.empty() : state_.untouched();
  return between && !waiters_.step ? std::optional(control::StreamPlace{id_, attempt_, step_}) : std::nullopt;
}

std::string GradientStream::describe() const {
  static constexpr const char* kPhases[] = {"open", "aborting", "void", "failed"};
  return "stream '" + spec_.name + "' " + kPhases[static_cast<std::size_t>(phase_)] + ", attempt " +
         std::to_string(attempt_) + ", step " + std::to_string(step_) + ", plan " + std::to_string(plan_->version()) +
         (state_.finished ? ", finished" : "") + ", " + std::to_string(state_.partitions_done) + " of " +
         std::to_string(plan_->partitions().size()) + " partitions done, " + std::to_string(in_flight_count_) +
         " in flight, " + std::to_string(state_.held.size()) + " tensors held back" +
         (joined_.joined() ? ", contributing zeros" : "") + (waiters_.step ? ", waited for" : "") +
         (waiters_.tensors ? ", tensors waited for" : "");
}

}  // namespace sirtaki::engine
