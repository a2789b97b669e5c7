#include "runtime/engine/device/device_gather.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "compression/device_coding.h"
#include "runtime/engine/device/device_blocks.h"

namespace sirtaki::engine {

DeviceGather::DeviceGather(ReductionSpec spec, ReductionDeps deps, StageNote note, DeviceTransport& transport,
                           Result<std::vector<std::byte*>> residuals)
    : Reduction(std::move(spec), deps, std::move(note)),
      transport_(transport),
      slices_(this->spec().slices, net()),
      residuals_(std::move(residuals)) {
  std::size_t at = rounded_up(slices_.header_bytes(), kBlockAlign);
  for (std::size_t s = 0; s < this->spec().slices.size(); ++s) {
    const ReducedSlice& slice = this->spec().slices[s];
    const compression::Piece piece{slice.offset, static_cast<std::int64_t>(slice.gradient.size() / sizeof(float))};
    const std::size_t bytes = slice.codec_state->coder().payload_bytes(piece.numel);
    wholes_.push_back({s, piece, slice.gradient.data(), bytes, 0, s});
    places_.push_back(at);
    at += rounded_up(bytes, kPayloadAlign);
  }
  block_bytes_ = rounded_up(at, kBlockAlign);
  flags_bytes_ = rounded_up(wholes_.size() * sizeof(std::uint32_t), kBlockAlign);
}

void DeviceGather::begin() {
  Status queued = residuals_.status();
  queued.update(queued.ok() ? take_memory() : Status());
  queued.update(queued.ok() ? encode() : Status());
  transport_.when_copied(queued, waited([this] { return send(); }));
}

Status DeviceGather::take_memory() {
  const std::size_t bytes = block_at(size());
  SRT_ASSIGN(host_, transport_.stage().take(bytes));
  SRT_ASSIGN(device_, transport_.take(bytes));
  return {};
}

Status DeviceGather::encode() {
  for (const Stripe& slice : wholes_) {
    kernels::Feedback arrays{slice.gradient};
    if (std::byte* const residual = (*residuals_)[slice.slice]) {
      arrays.residual = residual;
      arrays.left = slice.gradient;
    }
    auto* const not_finite = reinterpret_cast<std::uint32_t*>(device_.get()) + slice.index;
    std::byte* const to = device_.get() + payload_at(slice, rank());
    const compression::DeviceCoding& coding = *slices_.codec_state(slice).coder().on_device();
    SRT_TRY(DeviceTransport::queued(coding.encode(transport_.queue(), slice.piece, arrays, to, not_finite)));
  }
  const std::size_t own = block_at(rank());
  SRT_TRY(transport_.copy(on_host(own, block_bytes_).data(), device_.get() + own, block_bytes_));
  return transport_.copy(host_.bytes().data(), device_.get(), flags_bytes_);
}

Status DeviceGather::send() {
  for (const Stripe& slice : wholes_) {
    std::uint32_t not_finite = 0;
    std::memcpy(&not_finite, host_.bytes().data() + slice.index * sizeof not_finite, sizeof not_finite);
    if (not_finite != 0) {
      slices_.mark_not_finite(slice);
    }
  }
  const Bytes own = on_host(block_at(rank()), block_bytes_);
  std::size_t end = 0;
  for (const Stripe& slice : wholes_) {
    clear_until(own, places_[slice.index], end, slice.payload_bytes);
  }
  clear_until(own, block_bytes_, end, 0);
  slices_.write_header(own);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), static_cast<std::int64_t>(block_bytes_));
  allgather(0, host_.bytes().subspan(flags_bytes_), counts, [this] { return finish(); });
  return {};
}

Status DeviceGather::check() {
  for (Rank r = 0; r < size(); ++r) {
    SRT_TRY(slices_.read_header(r, on_host(block_at(r), block_bytes_)));
  }
  for (Rank r = 0; r < size(); ++r) {
    for (const Stripe& slice : wholes_) {
      if (slices_.carries(slice.slice)) {
        SRT_TRY(slices_.check(slice, r, on_host(payload_at(slice, r), slice.payload_bytes)));
      }
    }
  }
  return {};
}

Status DeviceGather::finish() {
  SRT_TRY(check());
  const Status queued = decode();
  // The host's memory is read until the copies are done.
  transport_.when_copied(queued, [host = std::move(host_)](const Status& /*arrived*/) {});
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

Status DeviceGather::decode() {
  const Bytes blocks = host_.bytes().subspan(flags_bytes_);
  SRT_TRY(transport_.copy(device_.get() + flags_bytes_, blocks.data(), blocks.size()));
  for (const Stripe& slice : wholes_) {
    SRT_TRY(sum(slice));
  }
  return {};
}

Status DeviceGather::sum(const Stripe& slice) {
  if (!slices_.carries(slice.slice)) {
    const float value = slices_.bad(slice.slice) ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
    return transport_.fill(slice.gradient, slice.size_bytes(), value);
  }
  if (std::byte* const residual = (*residuals_)[slice.slice]) {
    SRT_TRY(transport_.copy(residual, slice.gradient, slice.size_bytes()));
  }
  std::vector<const std::byte*> payloads;
  for (Rank r = 0; r < size(); ++r) {
    payloads.push_back(device_.get() + payload_at(slice, r));
  }
  const compression::DeviceCoding& coding = *slices_.codec_state(slice).coder().on_device();
  const compression::DeviceQueue queue = transport_.queue();
  SRT_TRY(DeviceTransport::queued(coding.sum(queue, slice.piece, payloads, slice.gradient)));
  if (divisor() == 1) {
    return {};
  }
  const std::byte* const sums[] = {slice.gradient};
  const kernels::cuda::Reduce mean{ReduceOp::kAverage, DType::kF32, sums, slice.gradient, slice.piece.numel, divisor()};
  return DeviceTransport::queued(queue.kernels.reduce(mean, queue.stream));
}

}  // namespace sirtaki::engine
