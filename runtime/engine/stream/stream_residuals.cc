#include "runtime/engine/stream/stream_residuals.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/anchor/anchor.h"

namespace sirtaki::engine {

StreamResiduals::StreamResiduals(const StreamSpec& spec, net::Collectives& net)
    : spec_(spec), store_(spec.tensors, net.rank(), net.size(), net.host_groups()) {}

Status StreamResiduals::admit(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient,
                              DensePath& path, std::uint64_t step) {
  const auto admit_to = [&](const TensorView& view) { store_.admit(index, planned, view, spec_.prescale, step); };
  const bool compressed = planned.decision.format().compressed();
  if (!compressed && store_.has_residual(index)) {
    return path.add_residual(gradient, admit_to);
  }
  admit_to(gradient);
  if (compressor_ && compressed) {
    return compressor_->admit(index, store_.of(index), gradient);
  }
  if (compressed) {
    store_.begin(index, gradient);
  }
  return {};
}

ReducedSlice StreamResiduals::slice(const scheduler::Slice& slice, const scheduler::PlannedTensor& planned,
                                    std::span<const TensorView> views, bool absent) {
  return {&store_.of(slice.tensor),
          planned.name,
          slice_of(slice, views),
          slice.offset,
          absent,
          store_.finite(slice.tensor),
          store_.senders(slice.tensor)};
}

std::shared_ptr<Reduction> StreamResiduals::reduce(const scheduler::Partition& partition, ReductionSpec spec,
                                                   ReductionDeps deps, StageNote note) {
  return compressor_ ? compressor_->reduce(partition, std::move(spec), deps, std::move(note))
                     : make_reduction(std::move(spec), deps, std::move(note));
}

void StreamResiduals::read(int index, std::span<float> out, Done done) const {
  store_.residual(index, std::as_writable_bytes(out).data());
  if (!compressor_) {
    done({});
    return;
  }
  compressor_->read_residuals(
      {index},
      [out](int /*tensor*/, ConstBytes residual) { std::memcpy(out.data(), residual.data(), residual.size()); },
      std::move(done));
}

Status StreamResiduals::load(int index, const scheduler::PlannedTensor& planned, std::span<const float> in,
                             Rank job_rank) {
  if (compressor_ && compressor_->supports_residual(index)) {
    return compressor_->restore_residual(index, in);
  }
  if (compressor_ && planned.decision.format().compressed()) {
    const bool zero = std::ranges::all_of(in, [](float value) { return value == 0; });
    return zero ? Status()
                : Status(Code::kUnsupported,
                         "tensor '" + planned.name + "' of stream '" + spec_.name +
                             "' is encoded on the GPU without error feedback and cannot take a residual; choose the "
                             "codec that the residual comes from, or set device.codecs=host",
                         {job_rank, planned.name});
  }
  if (!in.empty()) {
    store_.load_residual(index, std::as_bytes(in).data());
  }
  return {};
}

Status StreamResiduals::drain(const scheduler::Plan& plan, std::span<float> out) {
  std::size_t total = 0;
  for (const scheduler::PlannedTensor& tensor : plan.tensors()) {
    total += static_cast<std::size_t>(tensor.numel);
  }
  if (!out.empty() && out.size() != total) {
    return invalid_argument("stream '" + spec_.name + "' has " + std::to_string(total) + " elements, not " +
                            std::to_string(out.size()));
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const auto index = static_cast<int>(i);
    if (!out.empty()) {
      const auto numel = static_cast<std::size_t>(plan.tensors()[i].numel);
      store_.residual(index, std::as_writable_bytes(out.subspan(at, numel)).data());
      at += numel;
    }
    store_.clear_residual(index);
  }
  return {};
}

void StreamResiduals::norms(MoveFunction<void(const Status&, const std::vector<double>&)> then) const {
  std::vector<int> tensors(spec_.tensors.size());
  std::iota(tensors.begin(), tensors.end(), 0);
  const auto norms = std::make_shared<std::vector<double>>();
  for (const int tensor : tensors) {
    norms->push_back(store_.residual_norm(tensor));
  }
  Done done = [norms, then = std::move(then)](const Status& read) mutable { then(read, *norms); };
  if (!compressor_) {
    done({});
    return;
  }
  const auto norm = [norms](int tensor, ConstBytes elements) {
    const auto numel = static_cast<std::int64_t>(elements.size() / sizeof(float));
    (*norms)[static_cast<std::size_t>(tensor)] = std::sqrt(kernels::square_sum(numel, elements.data(), nullptr));
  };
  compressor_->read_residuals(std::move(tensors), norm, std::move(done));
}

}  // namespace sirtaki::engine
