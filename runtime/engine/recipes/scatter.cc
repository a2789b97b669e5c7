#include "runtime/engine/recipes/scatter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/finite/finite.h"

namespace sirtaki::engine {

Scatter::Scatter(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)),
      slices_(this->spec().slices),
      block_bytes_(static_cast<std::size_t>(size()), static_cast<std::int64_t>(slices_.header_bytes())) {
  for (const Stripe& stripe : slices_.stripes()) {
    block_bytes_[static_cast<std::size_t>(stripe.owner)] += static_cast<std::int64_t>(stripe.payload_bytes);
  }
  std::size_t at = 0;
  for (const std::int64_t bytes : block_bytes_) {
    block_at_.push_back(at);
    at += static_cast<std::size_t>(bytes);
  }
  block_at_.push_back(at);
}

void Scatter::begin() {
  outgoing_ = buffers().take(block_at_.back());
  const Bytes out = outgoing_.bytes();
  std::vector<std::size_t> next(block_at_.begin(), block_at_.end() - 1);
  std::ranges::for_each(next, [this](std::size_t& at) { at += slices_.header_bytes(); });
  for (const Stripe& stripe : slices_.stripes()) {
    std::size_t& at = next[static_cast<std::size_t>(stripe.owner)];
    slices_.encode(stripe, out.subspan(at, stripe.payload_bytes));
    at += stripe.payload_bytes;
  }
  for (Rank owner = 0; owner < size(); ++owner) {
    slices_.write_header(out.subspan(block_at_[static_cast<std::size_t>(owner)], slices_.header_bytes()));
  }
  const auto ranks = static_cast<std::size_t>(size());
  arrived_ = buffers().take(ranks * static_cast<std::size_t>(own_bytes()));
  alltoall(0, out, block_bytes_, arrived_.bytes(), std::vector<std::int64_t>(ranks, own_bytes()),
           [this] { return reduce(); });
}

Status Scatter::reduce() {
  outgoing_ = {};
  for (Rank r = 0; r < size(); ++r) {
    SRT_TRY(slices_.read_header(r, arrived(r, 0, slices_.header_bytes())));
  }
  std::size_t at = slices_.header_bytes();
  std::size_t sum_bytes = 0;
  for (const Stripe& stripe : slices_.stripes()) {
    for (Rank r = 0; r < size() && own(stripe) && slices_.carries(stripe.slice); ++r) {
      SRT_TRY(slices_.check(stripe, r, arrived(r, at, stripe.payload_bytes)));
    }
    at += own(stripe) ? stripe.payload_bytes : 0;
    sum_bytes += own(stripe) ? stripe.size_bytes() : 0;
  }
  sums_ = buffers().take(sum_bytes);
  results_ = buffers().take(block_at_.back());
  const Bytes out = results_.bytes().subspan(block_at_[static_cast<std::size_t>(rank())]);
  std::byte* sums = sums_.bytes().data();
  at = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    if (!own(stripe)) {
      continue;
    }
    const Bytes payload = out.subspan(at, stripe.payload_bytes);
    if (slices_.carries(stripe.slice) && sum_own(stripe, at, sums)) {
      encode_own(stripe, sums, payload);
    } else {
      std::ranges::fill(payload, std::byte{0});
    }
    at += stripe.payload_bytes;
    sums += stripe.size_bytes();
  }
  slices_.write_verdict(out);
  arrived_ = {};
  allgather(1, results_.bytes(), block_bytes_, [this] { return finish(); });
  return {};
}

// False: the sum is too large for a float32, though no part of it is.
bool Scatter::sum_own(const Stripe& stripe, std::size_t at, std::byte* sums) {
  std::vector<const std::byte*> payloads(static_cast<std::size_t>(size()));
  for (Rank r = 0; r < size(); ++r) {
    payloads[static_cast<std::size_t>(r)] = arrived(r, at, stripe.payload_bytes).data();
  }
  slices_.memory(stripe).coder().sum(stripe.piece, payloads, sums);
  if (kernels::all_finite(DType::kF32, sums, stripe.piece.numel)) {
    return true;
  }
  slices_.mark_bad(stripe.slice);
  return false;
}

void Scatter::encode_own(const Stripe& stripe, std::byte* sums, Bytes payload) {
  compression::TensorMemory& memory = slices_.memory(stripe);
  kernels::Feedback arrays = memory.owner_feedback(sums, stripe.piece.offset);
  if (arrays.left != nullptr) {
    arrays.left = sums;
  }
  memory.owner_coder().encode(stripe.piece, arrays, payload);
}

Status Scatter::finish() {
  const Bytes in = results_.bytes();
  for (Rank owner = 0; owner < size(); ++owner) {
    SRT_TRY(slices_.read_header(owner, in.subspan(block_at_[static_cast<std::size_t>(owner)])));
  }
  std::vector<std::size_t> first(block_at_.begin(), block_at_.end() - 1);
  std::ranges::for_each(first, [this](std::size_t& at) { at += slices_.header_bytes(); });
  std::vector<std::size_t> next = first;
  for (const Stripe& stripe : slices_.stripes()) {
    std::size_t& at = next[static_cast<std::size_t>(stripe.owner)];
    if (slices_.carries(stripe.slice)) {
      SRT_TRY(slices_.check(stripe, stripe.owner, in.subspan(at, stripe.payload_bytes)));
    }
    at += stripe.payload_bytes;
  }
  next = first;
  const std::byte* sums = sums_.bytes().data();
  const int divisor = spec().op == ReduceOp::kAverage ? size() : 1;
  for (const Stripe& stripe : slices_.stripes()) {
    std::size_t& at = next[static_cast<std::size_t>(stripe.owner)];
    const std::byte* payload = in.data() + at;
    slices_.apply(stripe, {&payload, 1}, divisor, spec().postscale);
    at += stripe.payload_bytes;
    if (own(stripe)) {
      const kernels::Feedback arrays = slices_.memory(stripe).owner_feedback(sums, stripe.piece.offset);
      if (arrays.left != nullptr && slices_.carries(stripe.slice)) {
        std::memcpy(arrays.left, sums, stripe.size_bytes());
      }
      sums += stripe.size_bytes();
    }
  }
  return {};
}

}  // namespace sirtaki::engine
