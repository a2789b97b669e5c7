// Residuals and codec states, which the program reads and sets between steps.
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/engine/stream/gradient_stream.h"
#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine {

Status GradientStream::check_between_steps(int index) const {
  if (index < 0 || static_cast<std::size_t>(index) >= spec_.tensors.size()) {
    return invalid_argument("stream '" + spec_.name + "' has no tensor number " + std::to_string(index));
  }
  if (in_flight_count_ != 0 || waiters_.step || (phase_ == Phase::kOpen && !state_.untouched())) {
    return {Code::kInvalidArgument,
            "stream '" + spec_.name + "' is in the middle of a step; wait for it before residuals are read or set",
            {job_rank(), plan_->tensors()[static_cast<std::size_t>(index)].name}};
  }
  return {};
}

Status GradientStream::check_residual(int index, std::size_t numel) const {
  SRT_TRY(check_between_steps(index));
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
  if (const Status allowed = check_residual(index, out.size()); !allowed.ok()) {
    done(allowed);
    return;
  }
  residuals_.read(index, out, std::move(done));
}

Status GradientStream::set_residual(int index, std::span<const float> in) {
  SRT_TRY(check_residual(index, in.size()));
  return residuals_.load(index, plan_->tensors()[static_cast<std::size_t>(index)], in, job_rank());
}

Status GradientStream::drain_residuals(std::span<float> out) {
  if (residuals_.on_device()) {
    return {Code::kUnsupported, "residuals of stream '" + spec_.name + "' are on a GPU on rank " +
                                    std::to_string(job_rank()) +
                                    " and cannot be drained together; read each of them, and set it to zeros"};
  }
  for (std::size_t i = 0; i < spec_.tensors.size(); ++i) {
    SRT_TRY(check_residual(static_cast<int>(i), static_cast<std::size_t>(plan_->tensors()[i].numel)));
  }
  return residuals_.drain(*plan_, out);
}

Status GradientStream::codec_state(int index, std::vector<std::byte>& out) const {
  SRT_TRY(check_between_steps(index));
  out = residuals_.codec_state(index);
  return {};
}

Status GradientStream::load_codec_state(int index, ConstBytes in) {
  SRT_TRY(check_between_steps(index));
  const std::string& name = plan_->tensors()[static_cast<std::size_t>(index)].name;
  const Status loaded = residuals_.load_codec_state(index, in);
  return loaded.ok() ? loaded
                     : Status(Code::kInvalidArgument, "tensor '" + name + "': " + std::string(loaded.text()),
                              {job_rank(), name});
}

void GradientStream::tensors_json(MoveFunction<void(Result<std::string>)> then) const {
  residuals_.norms([spec = spec_, plan = agreement_->plan(), then = std::move(then)](
                       const Status& read, const std::vector<double>& norms) mutable {
    JsonWriter json;
    write_tensors(json, spec, *plan, norms);
    then(read.ok() ? Result<std::string>(std::move(json).take()) : Result<std::string>(read));
  });
}

}  // namespace sirtaki::engine
