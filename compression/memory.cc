#include "compression/memory.h"

#include <algorithm>
#include <utility>

#include "kernels/half/elements.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

using Float = kernels::ref::Plain<float>;

std::byte* bytes_of(std::vector<float>& values, std::int64_t index) {
  return std::as_writable_bytes(std::span(values)).data() + static_cast<std::size_t>(index) * sizeof(float);
}

}  // namespace

TensorMemory::TensorMemory(const PayloadCodec& codec, std::vector<std::int64_t> params, const Shape& shape,
                           const Ownership& ownership)
    : codec_(codec),
      params_(std::move(params)),
      shape_(shape),
      ownership_(ownership),
      coder_(codec.open(params_, shape)) {}

Coder& TensorMemory::owner_coder() {
  if (!owner_coder_) {
    owner_coder_ = codec_.open_owner(params_, shape_);
  }
  return *owner_coder_;
}

kernels::Feedback TensorMemory::feedback(const std::byte* gradient, std::int64_t offset) {
  if (params_[params::kFeedback] == 0) {
    return {.gradient = gradient};
  }
  if (residual_.empty()) {
    residual_.resize(static_cast<std::size_t>(shape_.numel));
  }
  std::byte* residual = bytes_of(residual_, offset);
  return {.gradient = gradient, .residual = residual, .left = residual};
}

kernels::Feedback TensorMemory::owner_feedback(const std::byte* sums, std::int64_t offset) {
  if (params_[params::kFeedback] == 0) {
    return {.gradient = sums};
  }
  if (owner_residual_.empty()) {
    const std::int64_t stripes = (shape_.numel + ownership_.stripe - 1) / ownership_.stripe;
    const std::int64_t own = (stripes - ownership_.rank + ownership_.ranks - 1) / ownership_.ranks;
    owner_residual_.resize(static_cast<std::size_t>(own * ownership_.stripe));
  }
  std::byte* residual = bytes_of(owner_residual_, owner_index(offset));
  return {.gradient = sums, .residual = residual, .left = residual};
}

std::int64_t TensorMemory::owner_index(std::int64_t offset) const {
  SRT_CHECK(ownership_.owner_of(offset) == ownership_.rank);
  return offset / ownership_.stripe / ownership_.ranks * ownership_.stripe + offset % ownership_.stripe;
}

void TensorMemory::owed(std::byte* out) const {
  for (std::int64_t i = 0; i < shape_.numel; ++i) {
    float value = residual_.empty() ? 0.0F : residual_[static_cast<std::size_t>(i)];
    if (!owner_residual_.empty() && ownership_.owner_of(i) == ownership_.rank) {
      value += owner_residual_[static_cast<std::size_t>(owner_index(i))];
    }
    Float::store(value, out + static_cast<std::size_t>(i) * sizeof(float));
  }
}

void TensorMemory::restore(const std::byte* in) {
  residual_.resize(static_cast<std::size_t>(shape_.numel));
  for (std::size_t i = 0; i < residual_.size(); ++i) {
    residual_[i] = Float::load(in + i * sizeof(float));
  }
  owner_residual_.clear();
}

void TensorMemory::settle(const Piece& piece, std::byte* gradient) {
  const std::int64_t end = piece.offset + piece.numel;
  for (std::int64_t i = piece.offset; i < end && !empty(); ++i) {
    std::byte* at = gradient + static_cast<std::size_t>(i - piece.offset) * sizeof(float);
    float value = Float::load(at);
    if (!residual_.empty()) {
      value += std::exchange(residual_[static_cast<std::size_t>(i)], 0.0F);
    }
    if (!owner_residual_.empty() && ownership_.owner_of(i) == ownership_.rank) {
      value += std::exchange(owner_residual_[static_cast<std::size_t>(owner_index(i))], 0.0F);
    }
    Float::store(value, at);
  }
}

}  // namespace sirtaki::compression
