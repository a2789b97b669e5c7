// The way of a compressed partition: a reduction takes it from the gradients to the results.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/anchor/anchor.h"
#include "kernels/finite/finite.h"
#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/stream/gradient_stream.h"
#include "runtime/engine/stream/stream_plan.h"

namespace sirtaki::engine {

void GradientStream::launch_lossy(const scheduler::Partition& partition) {
  const int position = partition.position;
  const auto place = static_cast<std::uint32_t>(position);
  ReductionSpec spec;
  spec.reduction = partition.way.reduction;
  spec.priority = position;
  spec.op = spec_.reduce_op;
  spec.postscale = spec_.postscale;
  for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
    spec.tags[phase] = stream_tag(id_, attempt_, place, step_, phase);
  }
  for (const scheduler::Slice& slice : partition.slices) {
    const auto tensor = static_cast<std::size_t>(slice.tensor);
    spec.slices.push_back({&memory_.of(slice.tensor), plan_->tensors()[tensor].name, slice_of(slice, views_),
                           slice.offset, present_[tensor] == 0, memory_.finite(slice.tensor),
                           memory_.senders(slice.tensor)});
  }
  trace_.launched(position);
  deps_.raw_bytes.add(partition.size_bytes());
  deps_.wire_bytes.add(static_cast<std::uint64_t>(partition.wire_bytes));
  keeper_.partition_started();
  ++in_flight_count_;
  const auto note = [this, attempt = attempt_, position](ReductionStage next, std::int64_t bytes) {
    if (attempt != attempt_) {
      return;
    }
    if (next == ReductionStage::kWire) {
      trace_.encoded(position, bytes);
    } else {
      trace_.received(position, bytes);
    }
  };
  const ReductionDeps deps{deps_.net, deps_.buffers};
  auto reduction =
      codes_ ? codes_->reduce(partition, std::move(spec), deps, note) : make_reduction(std::move(spec), deps, note);
  SRT_CHECK(reduction);
  reductions_[position] = reduction;
  reduction->start([this, attempt = attempt_, position](const Status& status) { on_lossy(attempt, position, status); });
}

void GradientStream::on_lossy(std::uint32_t attempt, int position, const Status& status) {
  if (attempt == attempt_) {
    reductions_.erase(position);
  }
  if (arrived(attempt, status)) {
    const scheduler::Partition& partition = plan_->partitions()[static_cast<std::size_t>(position)];
    keeper_.partition_done(partition);
    trace_.decoded(position, static_cast<std::int64_t>(partition.size_bytes()));
    end_partition(position, Status());
  }
  answer();
}

// What was encoded is on its way before the next partition is.
void GradientStream::pump_later() {
  if (pump_timer_ == TimerId()) {
    pump_timer_ = deps_.loop.after(Duration(0), [this] {
      pump_timer_ = {};
      pump();
    });
  }
}

Status GradientStream::check_finite(int index) const {
  const TensorView& view = views_[static_cast<std::size_t>(index)];
  if (!finite_only_ || kernels::all_finite(view.dtype, view.bytes().data(), view.numel)) {
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

// ---- what is owed ----

Status GradientStream::admit_owed(int index, const scheduler::PlannedTensor& planned) {
  const TensorView& gradient = views_[static_cast<std::size_t>(index)];
  const auto admit_to = [&](const TensorView& view) {
    memory_.admit(index, planned, view, spec_.prescale, trained_ + step_);
  };
  if (!planned.decision.way().lossy() && memory_.owes(index)) {
    return dense_->pay(gradient, admit_to);
  }
  admit_to(gradient);
  return codes_ && planned.decision.way().lossy() ? codes_->admit(index, memory_.of(index).ownership(), gradient)
                                                  : Status();
}

Status GradientStream::check_memory(int index) const {
  if (index < 0 || static_cast<std::size_t>(index) >= spec_.tensors.size()) {
    return invalid_argument("stream '" + spec_.name + "' has no tensor number " + std::to_string(index));
  }
  if (in_flight_count_ != 0 || waiter_ || (phase_ == Phase::kOpen && !untouched())) {
    return {Code::kInvalidArgument,
            "stream '" + spec_.name + "' is in the middle of a step; wait for it before residuals are read or set",
            {job_rank(), plan_->tensors()[static_cast<std::size_t>(index)].name}};
  }
  return {};
}

Status GradientStream::check_residual(int index, std::size_t numel) const {
  SRT_TRY(check_memory(index));
  const scheduler::PlannedTensor& tensor = plan_->tensors()[static_cast<std::size_t>(index)];
  const Blame blame{job_rank(), tensor.name};
  if (static_cast<std::int64_t>(numel) != tensor.numel) {
    return {Code::kInvalidArgument,
            "tensor '" + tensor.name + "' of stream '" + spec_.name + "' has " + std::to_string(tensor.numel) +
                " elements, not " + std::to_string(numel),
            blame};
  }
  if (tensor.dtype != DType::kF32) {
    return {Code::kInvalidArgument,
            "tensor '" + tensor.name + "' of stream '" + spec_.name + "' is " + std::string(dtype_name(tensor.dtype)) +
                "; residuals are of float32 only",
            blame};
  }
  return {};
}

void GradientStream::residual(int index, std::span<float> out, Done done) const {
  if (const Status may = check_residual(index, out.size()); !may.ok()) {
    done(may);
    return;
  }
  memory_.owed(index, std::as_writable_bytes(out).data());
  if (!codes_) {
    done({});
    return;
  }
  codes_->read(
      {index}, [out](int /*tensor*/, ConstBytes owed) { std::memcpy(out.data(), owed.data(), owed.size()); },
      std::move(done));
}

Status GradientStream::set_residual(int index, std::span<const float> in) {
  SRT_TRY(check_residual(index, in.size()));
  if (codes_ && codes_->takes(index)) {
    return codes_->restore(index, in);
  }
  const scheduler::PlannedTensor& planned = plan_->tensors()[static_cast<std::size_t>(index)];
  if (codes_ && planned.decision.way().lossy()) {
    const bool none = std::ranges::all_of(in, [](float value) { return value == 0; });
    return none ? Status()
                : Status(Code::kUnsupported,
                         "tensor '" + planned.name + "' of stream '" + spec_.name +
                             "' is encoded on the GPU without error feedback, which takes up no residual; choose the "
                             "codec that left it, or device.codecs=host",
                         {job_rank(), planned.name});
  }
  if (!in.empty()) {
    memory_.restore(index, std::as_bytes(in).data());
  }
  return {};
}

Status GradientStream::take_residuals(std::span<float> out) {
  if (codes_) {
    return {Code::kUnsupported,
            "stream '" + spec_.name + "' owes on a GPU: ask for each residual, and set it to zeros"};
  }
  std::size_t total = 0;
  for (std::size_t i = 0; i < spec_.tensors.size(); ++i) {
    const auto numel = static_cast<std::size_t>(plan_->tensors()[i].numel);
    SRT_TRY(check_residual(static_cast<int>(i), numel));
    total += numel;
  }
  if (!out.empty() && out.size() != total) {
    return invalid_argument("stream '" + spec_.name + "' has " + std::to_string(total) + " elements, not " +
                            std::to_string(out.size()));
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < spec_.tensors.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (!out.empty()) {
      const auto numel = static_cast<std::size_t>(plan_->tensors()[i].numel);
      memory_.owed(index, std::as_writable_bytes(out.subspan(at, numel)).data());
      at += numel;
    }
    memory_.forget(index);
  }
  return {};
}

Status GradientStream::remembered(int index, std::vector<std::byte>& out) const {
  SRT_TRY(check_memory(index));
  out = memory_.remembered(index);
  return {};
}

Status GradientStream::recall(int index, ConstBytes in) {
  SRT_TRY(check_memory(index));
  const std::string& name = plan_->tensors()[static_cast<std::size_t>(index)].name;
  const Status taken = memory_.recall(index, in);
  return taken.ok() ? taken
                    : Status(Code::kInvalidArgument, "tensor '" + name + "': " + std::string(taken.text()),
                             {job_rank(), name});
}

void GradientStream::tensors_json(MoveFunction<void(Result<std::string>)> then) const {
  std::vector<int> tensors(spec_.tensors.size());
  std::iota(tensors.begin(), tensors.end(), 0);
  const auto owed = std::make_shared<std::vector<double>>();
  for (const int tensor : tensors) {
    owed->push_back(memory_.owed_norm(tensor));
  }
  Done done = [owed, spec = spec_, plan = keeper_.plan(), then = std::move(then)](const Status& read) mutable {
    JsonWriter json;
    write_tensors(json, spec, *plan, *owed);
    then(read.ok() ? Result<std::string>(std::move(json).take()) : Result<std::string>(read));
  };
  if (!codes_) {
    done({});
    return;
  }
  const auto norm = [owed](int tensor, ConstBytes elements) {
    const auto numel = static_cast<std::int64_t>(elements.size() / sizeof(float));
    (*owed)[static_cast<std::size_t>(tensor)] = std::sqrt(kernels::square_sum(numel, elements.data(), nullptr));
  };
  codes_->read(std::move(tensors), norm, std::move(done));
}

}  // namespace sirtaki::engine
