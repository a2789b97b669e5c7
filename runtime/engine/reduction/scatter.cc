#include "runtime/engine/reduction/scatter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/finite/finite.h"

namespace sirtaki::engine {

Scatter::Scatter(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)),
      slices_(this->spec().slices, net()),
      blocks_(size(), slices_.header_bytes(), slices_.stripes(),
              [](const Stripe& stripe) { return stripe.payload_bytes; }) {}

void Scatter::begin() {
  outgoing_ = buffers().take(blocks_.total());
  const Bytes out = outgoing_.bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    slices_.encode(stripe, blocks_.in_all(out, stripe));
  }
  for (Rank owner = 0; owner < size(); ++owner) {
    slices_.write_header(blocks_.block(out, owner));
  }
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t own = blocks_.size(rank());
  arrived_ = buffers().take(ranks * own);
  alltoall(0, out, blocks_.sizes(), arrived_.bytes(), std::vector<std::int64_t>(ranks, static_cast<std::int64_t>(own)),
           [this] { return reduce(); });
}

Status Scatter::check_arrived() {
  for (Rank r = 0; r < size(); ++r) {
    SRT_TRY(slices_.read_header(r, arrived(r)));
  }
  for (const Stripe& stripe : slices_.stripes()) {
    for (Rank r = 0; r < size() && own(stripe) && slices_.carries(stripe.slice); ++r) {
      SRT_TRY(slices_.check(stripe, r, blocks_.in_block(arrived(r), stripe)));
    }
  }
  return {};
}

Status Scatter::reduce() {
  outgoing_ = {};
  SRT_TRY(check_arrived());
  std::size_t sum_bytes = 0;
  for (const Stripe& stripe : slices_.stripes()) {
    sum_bytes += own(stripe) ? stripe.size_bytes() : 0;
  }
  sums_ = buffers().take(sum_bytes);
  results_ = buffers().take(blocks_.total());
  const Bytes out = blocks_.block(results_.bytes(), rank());
  std::byte* sums = sums_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    if (!own(stripe)) {
      continue;
    }
    const Bytes payload = blocks_.in_block(out, stripe);
    if (slices_.carries(stripe.slice) && sum_own(stripe, sums)) {
      encode_own(stripe, sums, payload);
    } else {
      std::ranges::fill(payload, std::byte{0});
    }
    sums += stripe.size_bytes();
  }
  slices_.write_owner_header(out);
  arrived_ = {};
  allgather(1, results_.bytes(), blocks_.sizes(), [this] { return finish(); });
  return {};
}

// Returns false if the sum overflows float32, although no term does.
bool Scatter::sum_own(const Stripe& stripe, std::byte* sums) {
  std::vector<const std::byte*> payloads(static_cast<std::size_t>(size()));
  for (Rank r = 0; r < size(); ++r) {
    payloads[static_cast<std::size_t>(r)] = blocks_.in_block(arrived(r), stripe).data();
  }
  slices_.codec_state(stripe).coder().sum(stripe.piece, payloads, sums);
  if (kernels::all_finite(DType::kF32, sums, stripe.piece.numel)) {
    return true;
  }
  slices_.mark_bad(stripe.slice);
  return false;
}

void Scatter::encode_own(const Stripe& stripe, std::byte* sums, Bytes payload) {
  compression::CodecState& state = slices_.codec_state(stripe);
  kernels::Feedback arrays = state.owner_feedback(sums, stripe.piece.offset);
  if (arrays.left != nullptr) {
    arrays.left = sums;
  }
  state.owner_coder().encode(stripe.piece, arrays, payload);
}

Status Scatter::finish() {
  const ConstBytes in = results_.bytes();
  for (Rank owner = 0; owner < size(); ++owner) {
    SRT_TRY(slices_.read_header(owner, blocks_.block(in, owner)));
  }
  for (const Stripe& stripe : slices_.stripes()) {
    if (slices_.carries(stripe.slice)) {
      SRT_TRY(slices_.check(stripe, stripe.owner, blocks_.in_all(in, stripe)));
    }
  }
  const std::byte* sums = sums_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    const std::byte* payload = blocks_.in_all(in, stripe).data();
    slices_.apply(stripe, {&payload, 1}, divisor(), spec().postscale);
    if (own(stripe)) {
      const kernels::Feedback arrays = slices_.codec_state(stripe).owner_feedback(sums, stripe.piece.offset);
      if (arrays.left != nullptr && slices_.carries(stripe.slice)) {
        std::memcpy(arrays.left, sums, stripe.size_bytes());
      }
      sums += stripe.size_bytes();
    }
  }
  return {};
}

std::shared_ptr<Reduction> make_scatter_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  return std::make_shared<Scatter>(std::move(spec), deps, std::move(note));
}

}  // namespace sirtaki::engine
