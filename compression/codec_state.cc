#include "compression/codec_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/half/elements.h"
#include "runtime/base/check.h"
#include "runtime/base/wire.h"

namespace sirtaki::compression {
namespace {

using Float = kernels::ref::Plain<float>;

std::byte* bytes_of(std::vector<float>& values, std::int64_t index) {
  return std::as_writable_bytes(std::span(values)).data() + static_cast<std::size_t>(index) * sizeof(float);
}

// A checkpoint holds the version of the format, codec, parameters and size, and the coder state.
constexpr std::uint16_t kFormat = 1;

struct SavedState {
  CodecId codec = CodecId::kNone;
  std::vector<std::int64_t> params;
  std::int64_t numel = 0;
  CoderState state;
};

Status read(ConstBytes bytes, SavedState& out) {
  WireReader in(bytes);
  const auto format = in.get<std::uint16_t>();
  out.codec = in.get<CodecId>();
  out.params = in.get_list<std::int64_t>();
  out.numel = in.get<std::int64_t>();
  out.state.momentum = in.get_list<float>();
  const ConstBytes own = in.get_bytes();
  out.state.own.assign(own.begin(), own.end());
  SRT_TRY(in.finish("a codec state"));
  const std::vector<float>& momentum = out.state.momentum;
  const bool whole = momentum.empty() || static_cast<std::int64_t>(momentum.size()) == out.numel;
  const bool sane = whole && std::ranges::all_of(momentum, [](float value) { return std::isfinite(value); });
  return format == kFormat && sane
             ? Status()
             : invalid_argument("a codec state is damaged, or its format is not that of this version");
}

}  // namespace

CodecState::CodecState(const PayloadCodec& codec, std::vector<std::int64_t> params, const Shape& shape,
                       const Ownership& ownership)
    : codec_(codec),
      params_(std::move(params)),
      shape_(shape),
      ownership_(ownership),
      coder_(codec.open(params_, shape)) {}

void CodecState::at_step(std::uint64_t step) {
  step_ = step;
  coder_->at_step(step);
  if (owner_coder_) {
    owner_coder_->at_step(step);
  }
}

Coder& CodecState::owner_coder() {
  if (!owner_coder_) {
    owner_coder_ = codec_.open_owner(params_, shape_);
    owner_coder_->at_step(step_);
  }
  return *owner_coder_;
}

kernels::Feedback CodecState::feedback(const std::byte* gradient, std::int64_t offset) {
  if (params_[params::kFeedback] == 0) {
    return {.gradient = gradient};
  }
  if (residual_.empty()) {
    residual_.resize(static_cast<std::size_t>(shape_.numel));
  }
  std::byte* residual = bytes_of(residual_, offset);
  return {.gradient = gradient, .residual = residual, .left = residual};
}

kernels::Feedback CodecState::owner_feedback(const std::byte* sums, std::int64_t offset) {
  if (params_[params::kFeedback] == 0) {
    return {.gradient = sums};
  }
  if (owner_residual_.empty()) {
    const std::int64_t rounds = ownership_.round_of(shape_.numel - 1) / ownership_.shares + 1;
    owner_residual_.resize(static_cast<std::size_t>(rounds * ownership_.own_shares * ownership_.stripe));
  }
  std::byte* residual = bytes_of(owner_residual_, owner_index(offset));
  return {.gradient = sums, .residual = residual, .left = residual};
}

std::int64_t CodecState::owner_index(std::int64_t offset) const {
  SRT_CHECK(ownership_.owns(offset));
  const std::int64_t before = ownership_.round_of(offset) / ownership_.shares * ownership_.own_shares;
  const std::int64_t stripe = before + ownership_.share_of(offset) - ownership_.first_share;
  return stripe * ownership_.stripe + offset % ownership_.stripe;
}

std::vector<std::byte> CodecState::state() const {
  const CoderState state = coder_->state();
  if (state.momentum.empty() && state.own.empty()) {
    return {};
  }
  WireWriter out;
  out.put(kFormat);
  out.put(codec_.id());
  out.put_list(params_);
  out.put(shape_.numel);
  out.put_list(state.momentum);
  out.put_bytes(state.own);
  return std::move(out).take();
}

void CodecState::load_state(ConstBytes saved) {
  SavedState found;
  if (!read(saved, found).ok() || found.numel != shape_.numel) {
    return;
  }
  if (found.codec != codec_.id() || found.params != params_) {
    found.state.own.clear();
  }
  coder_->restore(found.state);
}

Status CodecState::check_state(ConstBytes saved, std::int64_t numel) {
  SavedState found;
  SRT_TRY(read(saved, found));
  return found.numel == numel ? Status()
                              : invalid_argument("the codec state is of a tensor of " + std::to_string(found.numel) +
                                                 " elements, not " + std::to_string(numel));
}

void CodecState::residual(std::byte* out) const {
  const auto size = static_cast<std::size_t>(shape_.numel) * sizeof(float);
  if (residual_.empty()) {
    std::memset(out, 0, size);
  } else {
    std::memcpy(out, residual_.data(), size);
  }
  for (std::int64_t at = 0; at < shape_.numel && !owner_residual_.empty(); at += ownership_.stripe) {
    if (!ownership_.owns(at)) {
      continue;
    }
    const float* const more = owner_residual_.data() + owner_index(at);
    for (std::int64_t i = 0; i < std::min(ownership_.stripe, shape_.numel - at); ++i) {
      std::byte* const element = out + static_cast<std::size_t>(at + i) * sizeof(float);
      Float::store(Float::load(element) + more[i], element);
    }
  }
}

void CodecState::move_foreign_residual(float part, std::byte* out) {
  for (std::int64_t at = 0; at < shape_.numel && !residual_.empty(); at += ownership_.stripe) {
    if (ownership_.exchanges(at)) {
      continue;
    }
    for (std::int64_t i = at; i < std::min(at + ownership_.stripe, shape_.numel); ++i) {
      std::byte* const element = out + static_cast<std::size_t>(i) * sizeof(float);
      const float foreign = std::exchange(residual_[static_cast<std::size_t>(i)], 0.0F);
      Float::store(Float::load(element) + part * foreign, element);
    }
  }
}

void CodecState::load_residual(const std::byte* in) {
  residual_.resize(static_cast<std::size_t>(shape_.numel));
  for (std::size_t i = 0; i < residual_.size(); ++i) {
    residual_[i] = Float::load(in + i * sizeof(float));
  }
  owner_residual_.clear();
}

void CodecState::flush_residual(const Piece& piece, std::byte* gradient) {
  const std::int64_t end = piece.offset + piece.numel;
  for (std::int64_t i = piece.offset; i < end && !empty(); ++i) {
    std::byte* at = gradient + static_cast<std::size_t>(i - piece.offset) * sizeof(float);
    float value = Float::load(at);
    if (!residual_.empty()) {
      value += std::exchange(residual_[static_cast<std::size_t>(i)], 0.0F);
    }
    if (!owner_residual_.empty() && ownership_.owns(i)) {
      value += std::exchange(owner_residual_[static_cast<std::size_t>(owner_index(i))], 0.0F);
    }
    Float::store(value, at);
  }
}

}  // namespace sirtaki::compression
