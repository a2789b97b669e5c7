#include "compression/codecs/momentum.h"

#include <algorithm>
#include <span>
#include <utility>

namespace sirtaki::compression {

CodedMomentum::CodedMomentum(Params params, std::int64_t numel)
    : how_{static_cast<float>(params[params::kMomentum]) / static_cast<float>(params::kOne),
           params[params::kNesterov] != 0},
      numel_(numel) {}

std::byte* CodedMomentum::at(std::int64_t offset) {
  momentum_.resize(static_cast<std::size_t>(numel_));
  return std::as_writable_bytes(std::span(momentum_).subspan(static_cast<std::size_t>(offset))).data();
}

void CodedMomentum::restore(std::vector<float> values) {
  if (on() && values.size() == static_cast<std::size_t>(numel_)) {
    momentum_ = std::move(values);
  }
}

kernels::Feedback CodedMomentum::step(const Piece& piece, const kernels::Feedback& arrays) {
  if (!on()) {
    return arrays;
  }
  step_.resize(std::max(step_.size(), static_cast<std::size_t>(piece.numel)));
  std::byte* const step = std::as_writable_bytes(std::span(step_)).data();
  kernels::momentum_correct(how_, piece.numel, arrays.gradient, at(piece.offset), step);
  return {.gradient = step, .residual = arrays.residual, .left = arrays.left};
}

}  // namespace sirtaki::compression
