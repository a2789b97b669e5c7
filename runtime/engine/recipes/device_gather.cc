#include "runtime/engine/recipes/device_gather.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "compression/device_coding.h"

namespace sirtaki::engine {
namespace {

// Kernels read what begins there in words of that size.
constexpr std::size_t kAlign = 16;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

DeviceGather::DeviceGather(ReductionSpec spec, ReductionDeps deps, StageNote note, DevicePlane& plane,
                           Result<std::vector<std::byte*>> owed)
    : Reduction(std::move(spec), deps, std::move(note)),
      plane_(plane),
      slices_(this->spec().slices, net()),
      owed_(std::move(owed)) {
  block_bytes_ = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    place_.push_back(block_bytes_);
    block_bytes_ += stripe.payload_bytes;
    device_place_.push_back(device_block_bytes_);
    device_block_bytes_ += aligned(stripe.payload_bytes);
  }
  flags_bytes_ = aligned(slices_.stripes().size() * sizeof(std::uint32_t));
}

Bytes DeviceGather::block(Rank rank) const {
  return host_.bytes().subspan(flags_bytes_ + static_cast<std::size_t>(rank) * block_bytes_, block_bytes_);
}

Bytes DeviceGather::payload(const Stripe& stripe, Rank rank) const {
  return block(rank).subspan(place_[stripe.index], stripe.payload_bytes);
}

std::byte* DeviceGather::device_payload(const Stripe& stripe, Rank rank) const {
  return device_.get() + flags_bytes_ + static_cast<std::size_t>(rank) * device_block_bytes_ +
         device_place_[stripe.index];
}

std::byte* DeviceGather::owed(const Stripe& stripe) const {
  std::byte* const of_slice = (*owed_)[stripe.slice];
  const std::int64_t into = stripe.piece.offset - spec().slices[stripe.slice].offset;
  return of_slice == nullptr ? nullptr : of_slice + static_cast<std::size_t>(into) * sizeof(float);
}

void DeviceGather::begin() {
  Status given_in = owed_.status();
  given_in.update(given_in ? take_memory() : Status());
  given_in.update(given_in ? encode() : Status());
  plane_.when_copied(given_in, waited([this] { return send(); }));
}

Status DeviceGather::take_memory() {
  const auto ranks = static_cast<std::size_t>(size());
  SRT_ASSIGN(host_, plane_.stage().take(flags_bytes_ + ranks * block_bytes_));
  SRT_ASSIGN(device_, plane_.take(flags_bytes_ + ranks * device_block_bytes_));
  return {};
}

Status DeviceGather::encode() {
  const auto flags = [this](std::size_t stripe) { return device_.get() + stripe * sizeof(std::uint32_t); };
  for (const Stripe& stripe : slices_.stripes()) {
    kernels::Feedback arrays{stripe.gradient};
    if (std::byte* const residual = owed(stripe)) {
      arrays.residual = residual;
      arrays.left = stripe.gradient;
    }
    std::byte* const encoded = device_payload(stripe, rank());
    auto* const not_finite = reinterpret_cast<std::uint32_t*>(flags(stripe.index));
    const compression::DeviceCoding& coding = *slices_.memory(stripe).coder().on_device();
    SRT_TRY(DevicePlane::queued(coding.encode(plane_.queue(), stripe.piece, arrays, encoded, not_finite)));
    const Bytes to = payload(stripe, rank());
    SRT_TRY(plane_.copy(to.data(), encoded, to.size()));
  }
  return plane_.copy(host_.bytes().data(), device_.get(), flags_bytes_);
}

Status DeviceGather::send() {
  for (const Stripe& stripe : slices_.stripes()) {
    std::uint32_t not_finite = 0;
    std::memcpy(&not_finite, host_.bytes().data() + stripe.index * sizeof not_finite, sizeof not_finite);
    if (not_finite != 0) {
      slices_.note_not_finite(stripe);
    }
  }
  slices_.write_header(block(rank()));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), static_cast<std::int64_t>(block_bytes_));
  allgather(0, host_.bytes().subspan(flags_bytes_), counts, [this] { return finish(); });
  return {};
}

Status DeviceGather::check() {
  for (Rank r = 0; r < size(); ++r) {
    SRT_TRY(slices_.read_header(r, block(r)));
  }
  for (Rank r = 0; r < size(); ++r) {
    for (const Stripe& stripe : slices_.stripes()) {
      if (slices_.carries(stripe.slice)) {
        SRT_TRY(slices_.check(stripe, r, payload(stripe, r)));
      }
    }
  }
  return {};
}

Status DeviceGather::finish() {
  SRT_TRY(check());
  Status given_in;
  for (const Stripe& stripe : slices_.stripes()) {
    given_in.update(given_in ? sum(stripe) : Status());
  }
  // The host's memory is read until the copies are done.
  plane_.when_copied(given_in, [host = std::move(host_)](const Status& /*arrived*/) {});
  return given_in ? given_in : plane_.stage().fail(given_in);
}

Status DeviceGather::sum(const Stripe& stripe) {
  if (!slices_.carries(stripe.slice)) {
    const float value = slices_.bad(stripe.slice) ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
    return plane_.fill(stripe.gradient, stripe.size_bytes(), value);
  }
  if (std::byte* const residual = owed(stripe)) {
    SRT_TRY(plane_.copy(residual, stripe.gradient, stripe.size_bytes()));
  }
  std::vector<const std::byte*> payloads;
  for (Rank r = 0; r < size(); ++r) {
    payloads.push_back(device_payload(stripe, r));
    if (r != rank()) {
      const Bytes from = payload(stripe, r);
      SRT_TRY(plane_.copy(device_payload(stripe, r), from.data(), from.size()));
    }
  }
  const compression::DeviceCoding& coding = *slices_.memory(stripe).coder().on_device();
  SRT_TRY(DevicePlane::queued(coding.sum(plane_.queue(), stripe.piece, payloads, stripe.gradient)));
  if (divisor() == 1) {
    return {};
  }
  const std::byte* const sums[] = {stripe.gradient};
  const compression::DeviceQueue queue = plane_.queue();
  const kernels::cuda::Reduce mean{ReduceOp::kAverage, DType::kF32,        sums,
                                   stripe.gradient,    stripe.piece.numel, divisor()};
  return DevicePlane::queued(queue.kernels.reduce(mean, queue.stream));
}

}  // namespace sirtaki::engine
