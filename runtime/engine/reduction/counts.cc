#include "runtime/engine/reduction/counts.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::engine {
namespace {

using compression::CountedCodes;

// An exponent below all that a rank can propose.
constexpr std::byte kNone{0x80};

}  // namespace

Counts::Counts(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)),
      slices_(this->spec().slices, net()),
      code_blocks_(size(), 0, slices_.stripes(),
                   [](const Stripe& stripe) { return CountedCodes::code_bytes(stripe.piece.numel); }),
      count_blocks_(size(), 0, slices_.stripes(),
                    [this](const Stripe& stripe) { return CountedCodes::count_bytes(stripe.piece.numel, size()); }) {}

CountedCodes& Counts::codes(const Stripe& stripe) const {
  CountedCodes* const found = slices_.codec_state(stripe).coder().counted();
  SRT_CHECK(found != nullptr);
  return *found;
}

void Counts::begin() {
  std::size_t bytes = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    exponents_at_.push_back(bytes);
    bytes += CountedCodes::exponent_bytes(stripe.piece.numel);
  }
  thresholds_ = buffers().take(bytes);
  for (const Stripe& stripe : slices_.stripes()) {
    if (slices_.check_finite(stripe)) {
      codes(stripe).want(stripe.piece, slices_.feedback(stripe), exponents(stripe));
    } else {
      std::fill_n(exponents(stripe), CountedCodes::exponent_bytes(stripe.piece.numel), kNone);
    }
  }
  slices_.write_states(thresholds_.bytes());
  allreduce_largest(0, thresholds_.bytes(), [this] { return send_codes(); });
}

Status Counts::read_thresholds() {
  SRT_TRY(slices_.read_states(thresholds_.bytes()));
  for (const Stripe& stripe : slices_.stripes()) {
    if (slices_.carries(stripe.slice) && !CountedCodes::exponents_valid(stripe.piece.numel, exponents(stripe))) {
      return slices_.corrupt_from(-1, stripe.slice, "a threshold is one that no rank proposes");
    }
  }
  // A sum may overflow although no term does; all ranks see the same exponents, so all mark the same slices.
  for (const Stripe& stripe : slices_.stripes()) {
    if (slices_.carries(stripe.slice) && !CountedCodes::summable(stripe.piece.numel, exponents(stripe), size())) {
      slices_.mark_bad(stripe.slice);
    }
  }
  return {};
}

Status Counts::send_codes() {
  SRT_TRY(read_thresholds());
  outgoing_ = buffers().take(code_blocks_.total());
  const Bytes out = outgoing_.bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    const Bytes place = code_blocks_.in_all(out, stripe);
    if (slices_.carries(stripe.slice)) {
      CountedCodes::encode(stripe.piece.numel, exponents(stripe), slices_.feedback(stripe), place.data());
    } else {
      std::ranges::fill(place, std::byte{0});
    }
  }
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t own = code_blocks_.size(rank());
  arrived_ = buffers().take(ranks * own);
  alltoall(1, out, code_blocks_.sizes(), arrived_.bytes(),
           std::vector<std::int64_t>(ranks, static_cast<std::int64_t>(own)), [this] { return count(); });
  return {};
}

Status Counts::count() {
  outgoing_ = {};
  results_ = buffers().take(count_blocks_.total());
  std::vector<const std::byte*> all(static_cast<std::size_t>(size()));
  for (const Stripe& stripe : slices_.stripes()) {
    if (stripe.owner != rank()) {
      continue;
    }
    const Bytes counts = count_blocks_.in_all(results_.bytes(), stripe);
    if (!slices_.carries(stripe.slice)) {
      std::ranges::fill(counts, std::byte{0});
      continue;
    }
    for (Rank r = 0; r < size(); ++r) {
      const std::byte* const one = code_blocks_.in_block(arrived(r), stripe).data();
      if (!CountedCodes::codes_valid(stripe.piece.numel, one)) {
        return slices_.corrupt_from(r, stripe.slice, "a code is up and down at once, or lies behind the last element");
      }
      all[static_cast<std::size_t>(r)] = one;
    }
    CountedCodes::count(stripe.piece.numel, all, counts.data());
  }
  arrived_ = {};
  allgather(2, results_.bytes(), count_blocks_.sizes(), [this] { return finish(); });
  return {};
}

Status Counts::finish() {
  const ConstBytes in = results_.bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    const std::byte* const counts = count_blocks_.in_all(in, stripe).data();
    if (slices_.carries(stripe.slice) && !CountedCodes::counts_valid(stripe.piece.numel, size(), counts)) {
      return slices_.corrupt_from(stripe.owner, stripe.slice, "a count of codes is larger than the number of ranks");
    }
  }
  for (const Stripe& stripe : slices_.stripes()) {
    if (!slices_.carries(stripe.slice)) {
      slices_.fill(stripe);
      continue;
    }
    slices_.store_residual(stripe);
    const std::byte* const counts = count_blocks_.in_all(in, stripe).data();
    CountedCodes::decode(stripe.piece.numel, size(), exponents(stripe), counts, stripe.gradient);
    slices_.scale(stripe, divisor(), spec().postscale);
  }
  return {};
}

std::shared_ptr<Reduction> make_counts_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  return std::make_shared<Counts>(std::move(spec), deps, std::move(note));
}

}  // namespace sirtaki::engine
