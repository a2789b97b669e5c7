#include "runtime/engine/reduction/slices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/finite/finite.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"

namespace sirtaki::engine {
namespace {

constexpr std::byte kBad{1};
constexpr std::byte kAbsent{2};

// States in ascending order: the maximum over ranks is the common state.
constexpr std::byte kNoGradient{0};
constexpr std::byte kFinite{1};
constexpr std::byte kNotFinite{2};

std::byte flags_of(bool bad, bool absent) {
  return (bad ? kBad : std::byte{0}) | (absent ? kAbsent : std::byte{0});
}

// Uses memcpy, because memory of the program may be unaligned.
void fill_with(std::byte* out, std::int64_t n, float value) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(out + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
  }
}

}  // namespace

Slices::Slices(std::span<const ReducedSlice> slices, const net::Collectives& net)
    : slices_(slices), net_(net), own_bad_(slices.size(), 0), bad_(slices.size(), 0), present_(slices.size(), 0) {
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const ReducedSlice& slice = slices[s];
    own_bad_[s] = slice.finite ? 0 : 1;
    const compression::Ownership& ownership = slice.codec_state->ownership();
    const std::int64_t end = slice.offset + static_cast<std::int64_t>(slice.gradient.size() / sizeof(float));
    std::byte* gradient = slice.gradient.data();
    for (std::int64_t at = slice.offset; at < end; at += ownership.stripe) {
      const compression::Piece piece{at, std::min(ownership.stripe, end - at)};
      const std::size_t bytes = slice.codec_state->coder().payload_bytes(piece.numel);
      stripes_.push_back({s, piece, gradient, bytes, ownership.owner_of(at), stripes_.size()});
      gradient += stripes_.back().size_bytes();
    }
  }
}

bool Slices::check_finite(const Stripe& stripe) {
  std::uint8_t& bad = own_bad_[stripe.slice];
  if (bad == 0 && !kernels::all_finite(DType::kF32, stripe.gradient, stripe.piece.numel)) {
    bad = 1;
  }
  return bad == 0;
}

kernels::Feedback Slices::feedback(const Stripe& stripe) const {
  kernels::Feedback arrays = codec_state(stripe).feedback(stripe.gradient, stripe.piece.offset);
  if (arrays.left != nullptr) {
    arrays.left = stripe.gradient;
  }
  return arrays;
}

bool Slices::encode(const Stripe& stripe, Bytes payload) {
  if (!check_finite(stripe)) {
    std::ranges::fill(payload, std::byte{0});
    return false;
  }
  codec_state(stripe).coder().encode(stripe.piece, feedback(stripe), payload);
  return true;
}

void Slices::write_header(Bytes header) const {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    header[s] = flags_of(own_bad_[s] != 0, slices_[s].absent);
  }
}

void Slices::write_owner_header(Bytes header) const {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    header[s] = flags_of(bad_[s] != 0, present_[s] == 0);
  }
}

void Slices::write_counts(Bytes counts) const {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    const float own[] = {own_bad_[s] != 0 ? 1.0F : 0.0F, slices_[s].absent ? 0.0F : 1.0F};
    std::memcpy(counts.data() + s * sizeof own, own, sizeof own);
  }
}

void Slices::write_states(Bytes states) const {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    states[s] = own_bad_[s] != 0 ? kNotFinite : slices_[s].absent ? kNoGradient : kFinite;
  }
}

Status Slices::corrupt_from(Rank from, std::size_t slice, std::string_view problem) const {
  const std::string_view name = slices_[slice].name;
  const Rank named = from < 0 ? from : net_.job_rank(from);
  return {
      Code::kCorrupt,
      "tensor '" + std::string(name) + "': " + std::string(problem) +
          (from < 0 ? "" : ", from rank " + std::to_string(named)) +
          ". Likely cause: the memory of a rank or the network damaged it, or a rank runs another build; it was not "
          "used",
      {named, std::string(name)}};
}

Status Slices::read_header(Rank from, ConstBytes header) {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    if ((header[s] & ~(kBad | kAbsent)) != std::byte{0}) {
      return corrupt_from(from, s, "the header of a compressed payload has flags that no sender writes");
    }
    if ((header[s] & kBad) != std::byte{0}) {
      bad_[s] = 1;
    }
    if ((header[s] & kAbsent) == std::byte{0}) {
      present_[s] = 1;
    }
  }
  return {};
}

Status Slices::read_counts(ConstBytes counts, int ranks) {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    float sums[2];
    std::memcpy(sums, counts.data() + s * sizeof sums, sizeof sums);
    for (const float sum : sums) {
      if (!(sum >= 0 && sum <= static_cast<float>(ranks) && sum == std::floor(sum))) {
        return corrupt_from(-1, s, "the count of ranks with a gradient is not a number of ranks");
      }
    }
    if (sums[0] > 0) {
      mark_bad(s);
    }
    if (sums[1] > 0) {
      mark_present(s);
    }
  }
  return {};
}

Status Slices::read_states(ConstBytes states) {
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    if (states[s] > kNotFinite) {
      return corrupt_from(-1, s, "the state of a gradient is one that no rank sends");
    }
    if (states[s] == kNotFinite) {
      mark_bad(s);
    }
    if (states[s] != kNoGradient) {
      mark_present(s);
    }
  }
  return {};
}

const compression::Coder& Slices::coder_of(const Stripe& stripe, Rank from) const {
  const auto& senders = slices_[stripe.slice].senders;
  return senders.empty() ? codec_state(stripe).coder() : *senders[static_cast<std::size_t>(from)];
}

std::size_t Slices::payload_bytes(const Stripe& stripe, Rank from) const {
  return slices_[stripe.slice].senders.empty() ? stripe.payload_bytes
                                               : coder_of(stripe, from).payload_bytes(stripe.piece.numel);
}

// Sums in rank order; payloads of different coders are decoded one by one.
void Slices::sum(const Stripe& stripe, std::span<const std::byte* const> payloads) const {
  if (slices_[stripe.slice].senders.empty()) {
    codec_state(stripe).coder().sum(stripe.piece, payloads, stripe.gradient);
    return;
  }
  std::vector<std::byte> one(stripe.size_bytes());
  fill_with(stripe.gradient, stripe.piece.numel, 0.0F);
  for (std::size_t r = 0; r < payloads.size(); ++r) {
    coder_of(stripe, static_cast<Rank>(r)).sum(stripe.piece, payloads.subspan(r, 1), one.data());
    const std::byte* const terms[] = {stripe.gradient, one.data()};
    kernels::reduce(ReduceOp::kSum, DType::kF32, terms, stripe.gradient, stripe.piece.numel);
  }
}

Status Slices::check(const Stripe& stripe, Rank from, ConstBytes payload) const {
  const Status status = coder_of(stripe, from).check(stripe.piece, payload);
  return status.ok() ? status : corrupt_from(from, stripe.slice, status.text());
}

void Slices::fill(const Stripe& stripe) const {
  const float value = bad(stripe.slice) ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
  fill_with(stripe.gradient, stripe.piece.numel, value);
}

void Slices::apply(const Stripe& stripe, std::span<const std::byte* const> payloads, int divisor,
                   double postscale) const {
  if (!carries(stripe.slice)) {
    fill(stripe);
    return;
  }
  store_residual(stripe);
  sum(stripe, payloads);
  scale(stripe, divisor, postscale);
}

void Slices::store_residual(const Stripe& stripe) const {
  const kernels::Feedback arrays = codec_state(stripe).feedback(stripe.gradient, stripe.piece.offset);
  if (arrays.left != nullptr) {
    std::memcpy(arrays.left, stripe.gradient, stripe.size_bytes());
  }
}

void Slices::scale(const Stripe& stripe, int divisor, double postscale) const {
  if (divisor > 1) {
    kernels::divide_by(DType::kF32, stripe.gradient, stripe.piece.numel, divisor);
  }
  if (postscale != 1.0) {
    kernels::scale(DType::kF32, stripe.gradient, stripe.piece.numel, postscale);
  }
}

}  // namespace sirtaki::engine
