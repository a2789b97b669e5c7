#include "runtime/engine/stream.h"

#include <algorithm>
#include <utility>

#include "compression/catalog.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "runtime/engine/tags.h"

namespace sirtaki::engine {

Stream::Stream(StreamId id, StreamSpec spec, std::shared_ptr<const scheduler::Plan> plan, std::int64_t credit_bytes,
               StreamDeps deps)
    : id_(id), spec_(std::move(spec)), plan_(std::move(plan)), deps_(deps), dispatcher_(credit_bytes) {
  std::vector<std::int64_t> payloads;
  for (const scheduler::Partition& partition : plan_->partitions()) {
    payloads.push_back(partition.numel * static_cast<std::int64_t>(dtype_size(wire_dtype(partition))));
  }
  const Status adopted = dispatcher_.adopt(plan_, std::move(payloads));
  SRT_CHECK(adopted);
  used_.assign(spec_.tensors.size(), 1);
  open_step();
}

void Stream::open_step() {
  const std::size_t count = spec_.tensors.size();
  views_.assign(count, {});
  submitted_.assign(count, 0);
  present_.assign(count, 1);
  launched_.assign(plan_->partitions().size(), 0);
  ready_at_.assign(plan_->partitions().size(), {});
  held_.clear();
  finished_ = asked_for_flags_ = flags_started_ = flags_done_ = false;
  partitions_started_ = partitions_done_ = 0;
  first_ready_ = {};
  waited_since_ = {};
  dispatcher_.reset();
}

// ---- what the program does ----

Status Stream::check_ready(int index, const TensorView& tensor) const {
  const auto i = static_cast<std::size_t>(index);
  const scheduler::PlannedTensor& planned = plan_->tensors()[i];
  const Blame blame{deps_.net.rank(), planned.name};
  if (tensor.numel != planned.numel || tensor.dtype != planned.dtype) {
    return {Code::kMismatch,
            "tensor '" + planned.name + "' of stream '" + spec_.name + "' has " + std::to_string(tensor.numel) + " " +
                std::string(dtype_name(tensor.dtype)) + " elements on rank " + std::to_string(deps_.net.rank()) +
                " but was registered with " + std::to_string(planned.numel) + " " +
                std::string(dtype_name(planned.dtype)) +
                ". Likely cause: the parameter was replaced or resized; create the optimizer anew",
            blame};
  }
  if (submitted_[i] != 0) {
    return {Code::kInvalidArgument,
            "tensor '" + planned.name + "' of stream '" + spec_.name + "' became ready twice in one step on rank " +
                std::to_string(deps_.net.rank()) +
                ". Likely cause: backward ran twice; set backward_passes_per_step or call step() between",
            blame};
  }
  return {};
}

void Stream::ready(int index, TensorView tensor, bool absent) {
  ++progress_;
  if (phase_ == Phase::kAborting) {
    next_step_.emplace_back([this, index, tensor, absent] { ready(index, tensor, absent); });
    return;
  }
  if (phase_ != Phase::kOpen) {
    return;
  }
  if (const Status status = check_ready(index, tensor); !status) {
    give_up(status);
    return;
  }
  const auto i = static_cast<std::size_t>(index);
  if (first_ready_ == TimePoint()) {
    first_ready_ = deps_.loop.now();
  }
  views_[i] = tensor;
  submitted_[i] = 1;
  present_[i] = absent ? 0 : 1;
  if (absent && !flags_on()) {
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

void Stream::admit(int index) {
  if (plan_->tensors()[static_cast<std::size_t>(index)].numel == 0) {
    return;
  }
  if (auto ready = dispatcher_.tensor_ready(index); !ready) {
    give_up(ready.status());
  }
}

void Stream::finish() {
  ++progress_;
  if (phase_ == Phase::kAborting) {
    next_step_.emplace_back([this] { finish(); });
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
             {deps_.net.rank(), name}});
    return;
  }
  finished_ = true;
  if (flags_on()) {
    start_flags();
  }
  pump();
  answer();
}

void Stream::wait(Done done) {
  SRT_CHECK(!waiter_);
  if (phase_ == Phase::kOpen && !finished_) {
    deps_.loop.post([done = std::move(done), name = spec_.name]() mutable {
      done(invalid_argument("stream '" + name + "' was waited for before its step was finished"));
    });
    return;
  }
  waiter_ = std::move(done);
  waited_since_ = deps_.loop.now();
  answer();
}

void Stream::abort(Status cause, Task released) {
  if (phase_ == Phase::kAborting) {
    // The step after the one given up is given up, too.
    next_step_.emplace_back([this, cause = std::move(cause)]() mutable { abort(std::move(cause), [] {}); });
    release(std::move(released));
    return;
  }
  released_.push_back(std::move(released));
  give_up(cause);
  if (phase_ == Phase::kVoid) {
    // The program knows already: what it submits from here on belongs to the next step.
    phase_ = Phase::kAborting;
    leave_void();
  }
  answer();
}

// ---- the pipeline of a partition ----

DType Stream::wire_dtype(const scheduler::Partition& partition) const {
  return compression::codec(partition.decision.codec).wire_dtype(partition.dtype);
}

bool Stream::in_place(const scheduler::Partition& partition) const {
  return partition.slices.size() == 1 && wire_dtype(partition) == partition.dtype;
}

Bytes Stream::slice_of(const scheduler::Slice& slice) const {
  const TensorView& view = views_[static_cast<std::size_t>(slice.tensor)];
  const std::size_t element = dtype_size(view.dtype);
  return view.bytes().subspan(static_cast<std::size_t>(slice.offset) * element,
                              static_cast<std::size_t>(slice.numel) * element);
}

void Stream::pump() {
  const int last = static_cast<int>(plan_->partitions().size()) - 1;
  while (phase_ == Phase::kOpen && (finished_ || partitions_started_ < last)) {
    const scheduler::Partition* partition = dispatcher_.next();
    if (partition == nullptr) {
      return;
    }
    ++partitions_started_;
    launch(*partition);
  }
}

void Stream::launch(const scheduler::Partition& partition) {
  const int position = partition.position;
  const DType wire = wire_dtype(partition);
  const TimePoint begin = deps_.trace.now();
  BufferPool::Buffer buffer;
  net::CollectiveArgs args;
  if (in_place(partition)) {
    args.out = slice_of(partition.slices.front());
    if (spec_.prescale != 1.0) {
      kernels::scale(wire, args.out.data(), partition.numel, spec_.prescale);
    }
  } else {
    buffer = deps_.buffers.take(static_cast<std::size_t>(partition.numel) * dtype_size(wire));
    gather(partition, buffer.bytes());
    args.out = buffer.bytes();
  }
  args.kind = OpKind::kAllreduce;
  args.tag = stream_tag(id_, attempt_, static_cast<std::uint32_t>(position), step_);
  args.dtype = wire;
  args.op = spec_.reduce_op;
  args.in = args.out;
  args.priority = position;
  deps_.raw_bytes.add(partition.size_bytes());
  deps_.wire_bytes.add(args.out.size());
  deps_.trace.partition(spec_.name, Stage::kPack, begin, position, static_cast<std::int64_t>(args.out.size()));
  launched_[static_cast<std::size_t>(position)] = 1;
  ready_at_[static_cast<std::size_t>(position)] = deps_.trace.now();
  ++in_flight_count_;
  // The buffer lives in the callback, so memory in flight outlives whatever happens to the step.
  deps_.net.start(std::move(args),
                  [this, attempt = attempt_, position, held = std::move(buffer)](const Status& status) mutable {
                    on_partition(attempt, position, std::move(held), status);
                  });
}

void Stream::gather(const scheduler::Partition& partition, Bytes out) const {
  const compression::Codec& codec = compression::codec(partition.decision.codec);
  const DType wire = codec.wire_dtype(partition.dtype);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes from = slice_of(slice);
    const Bytes to = out.subspan(static_cast<std::size_t>(slice.at) * dtype_size(wire),
                                 static_cast<std::size_t>(slice.numel) * dtype_size(wire));
    if (wire == partition.dtype) {
      std::ranges::copy(from, to.data());
      if (spec_.prescale != 1.0) {
        kernels::scale(wire, to.data(), slice.numel, spec_.prescale);
      }
      continue;
    }
    if (spec_.prescale == 1.0) {
      codec.encode(partition.dtype, from, to);
      continue;
    }
    BufferPool::Buffer scaled = deps_.buffers.take(from.size());
    std::ranges::copy(from, scaled.bytes().data());
    kernels::scale(partition.dtype, scaled.bytes().data(), slice.numel, spec_.prescale);
    codec.encode(partition.dtype, scaled.bytes(), to);
  }
}

Status Stream::scatter(const scheduler::Partition& partition, ConstBytes in) const {
  const compression::Codec& codec = compression::codec(partition.decision.codec);
  const DType wire = codec.wire_dtype(partition.dtype);
  const bool moved = !in_place(partition);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes to = slice_of(slice);
    if (moved) {
      const ConstBytes from = in.subspan(static_cast<std::size_t>(slice.at) * dtype_size(wire),
                                         static_cast<std::size_t>(slice.numel) * dtype_size(wire));
      if (wire == partition.dtype) {
        std::ranges::copy(from, to.data());
      } else {
        SRT_TRY(codec.decode(partition.dtype, from, to));
      }
    }
    if (spec_.postscale != 1.0) {
      kernels::scale(partition.dtype, to.data(), slice.numel, spec_.postscale);
    }
  }
  return {};
}

void Stream::on_partition(std::uint32_t attempt, int position, BufferPool::Buffer buffer, const Status& status) {
  --in_flight_count_;
  ++progress_;
  const bool current = attempt == attempt_ && phase_ == Phase::kOpen;
  if (attempt == attempt_) {
    launched_[static_cast<std::size_t>(position)] = 0;
  }
  if (current && !status) {
    give_up(status);
  } else if (current) {
    const scheduler::Partition& partition = plan_->partitions()[static_cast<std::size_t>(position)];
    const auto size = static_cast<std::int64_t>(partition.size_bytes());
    deps_.trace.partition(spec_.name, Stage::kNetwork, ready_at_[static_cast<std::size_t>(position)], position, size);
    const TimePoint begin = deps_.trace.now();
    const Status decoded = scatter(partition, buffer.bytes());
    deps_.trace.partition(spec_.name, Stage::kUnpack, begin, position, size);
    const Status given_back = dispatcher_.finished(position);
    SRT_CHECK(given_back);
    ++partitions_done_;
    if (!decoded) {
      give_up(decoded);
    }
    pump();
  }
  answer();
}

// ---- who had a gradient ----

bool Stream::flags_on() const {
  return flags_from_ && std::pair(attempt_, step_) >= *flags_from_;
}

void Stream::on_flags(const control::StreamFlags& message) {
  flags_from_ = std::pair(message.attempt, message.step);
  if (phase_ != Phase::kOpen || !flags_on()) {
    return;
  }
  for (const int index : std::exchange(held_, {})) {
    admit(index);
  }
  if (finished_) {
    start_flags();
  }
  pump();
}

void Stream::start_flags() {
  if (flags_started_ || phase_ != Phase::kOpen) {
    return;
  }
  flags_started_ = true;
  used_ = present_;
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.tag = stream_tag(id_, attempt_, kFlagsPosition, step_);
  args.dtype = DType::kU8;
  args.op = ReduceOp::kMax;
  args.out = std::as_writable_bytes(std::span(used_));
  args.in = args.out;
  ++in_flight_count_;
  deps_.net.start(std::move(args),
                  [this, attempt = attempt_](const Status& status) { on_flags_done(attempt, status); });
}

void Stream::on_flags_done(std::uint32_t attempt, const Status& status) {
  --in_flight_count_;
  if (attempt == attempt_ && phase_ == Phase::kOpen) {
    if (status) {
      flags_done_ = true;
    } else {
      give_up(status);
    }
  }
  answer();
}

// ---- deviations ----

void Stream::give_up(const Status& cause) {
  if (phase_ != Phase::kOpen) {
    return;
  }
  phase_ = Phase::kVoid;
  cancel_in_flight(cause);
  if (cause.code() != Code::kPeerLost) {
    deps_.control.send(control::StreamAbort{id_, attempt_, step_, cause});
    return;
  }
  // As in NamedOps::fail_later: the control plane may know the first cause.
  verdict_ = deps_.loop.after(kCauseGrace, [this, cause] {
    verdict_ = {};
    deps_.control.send(control::StreamAbort{id_, attempt_, step_, left_ ? cause : left_});
  });
}

Stream::~Stream() {
  deps_.loop.cancel(verdict_);
}

void Stream::cancel_in_flight(const Status& cause) {
  dispatcher_.reset();
  for (std::size_t position = 0; position < launched_.size(); ++position) {
    if (launched_[position] != 0) {
      deps_.net.cancel(stream_tag(id_, attempt_, static_cast<std::uint32_t>(position), step_), cause);
    }
  }
  if (flags_started_ && !flags_done_) {
    deps_.net.cancel(stream_tag(id_, attempt_, kFlagsPosition, step_), cause);
  }
}

void Stream::on_aborted(const control::StreamAborted& message) {
  if (phase_ == Phase::kFailed) {
    return;
  }
  aborts_.push_back(message);
  apply_aborts();
  answer();
}

void Stream::apply_aborts() {
  while (!aborts_.empty() && (phase_ != Phase::kOpen || step_ >= aborts_.front().step)) {
    const control::StreamAborted message = std::move(aborts_.front());
    aborts_.pop_front();
    if (phase_ == Phase::kOpen && !message.everywhere && untouched()) {
      attempt_ = message.attempt;
      step_ = 0;
      continue;
    }
    if (phase_ == Phase::kOpen) {
      phase_ = Phase::kVoid;
      cancel_in_flight(message.status);
    }
    attempt_ = message.attempt;
    step_ = 0;
    deps_.loop.cancel(verdict_);
    causes_.push_back(message.status);  // the coordinator's words: the same on all ranks
    leave_void();
  }
}

// Opens the next step once a program that gave a step up itself has the coordinator's word for it.
void Stream::leave_void() {
  if (phase_ != Phase::kAborting || causes_.empty()) {
    return;
  }
  causes_.pop_front();
  reopen();
  while (phase_ != Phase::kAborting && !next_step_.empty()) {
    Task call = std::move(next_step_.front());
    next_step_.pop_front();
    call();
  }
}

// A step that was given up meanwhile by another rank is still to be told of.
void Stream::reopen() {
  phase_ = causes_.empty() ? Phase::kOpen : Phase::kVoid;
  open_step();
}

void Stream::fail(const Status& cause) {
  deps_.loop.cancel(verdict_);
  failure_.update(cause);
  phase_ = Phase::kFailed;
  next_step_.clear();
  answer();
}

// ---- completion ----

// Nothing of the step has happened on this rank.
bool Stream::untouched() const {
  return first_ready_ == TimePoint() && !finished_;
}

bool Stream::step_complete() const {
  return finished_ && held_.empty() && partitions_done_ == static_cast<int>(plan_->partitions().size()) &&
         (!flags_on() || flags_done_);
}

// Tells whoever waits, when there is something to tell and no operation uses the caller's memory any more.
void Stream::answer() {
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
    if (!flags_on()) {
      std::fill(used_.begin(), used_.end(), std::uint8_t{1});
    }
    ++step_;
    open_step();
    Done waiter = std::exchange(waiter_, {});
    apply_aborts();
    waiter(Status());
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

void Stream::release(Task task) {
  released_.push_back(std::move(task));
  answer();
}

std::optional<control::WaitEntry> Stream::in_flight() const {
  if (phase_ != Phase::kOpen || !finished_) {
    return std::nullopt;
  }
  control::WaitEntry entry;
  entry.kind = control::WaitKind::kStreamStep;
  entry.name = spec_.name;
  entry.use = (static_cast<std::uint64_t>(attempt_) << 32) | (step_ & 0xffffffffU);
  return entry;
}

std::string Stream::describe() const {
  static constexpr const char* kPhases[] = {"open", "aborting", "void", "failed"};
  return "stream '" + spec_.name + "' " + kPhases[static_cast<std::size_t>(phase_)] + ", attempt " +
         std::to_string(attempt_) + ", step " + std::to_string(step_) + (finished_ ? ", finished" : "") + ", " +
         std::to_string(partitions_done_) + " of " + std::to_string(plan_->partitions().size()) + " partitions done, " +
         std::to_string(in_flight_count_) + " in flight, " + std::to_string(held_.size()) + " tensors held back" +
         (waiter_ ? ", waited for" : "");
}

}  // namespace sirtaki::engine
