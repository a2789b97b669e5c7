#include "runtime/engine/reduction/low_rank.h"

#include <algorithm>
#include <utility>

#include "kernels/finite/finite.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

namespace sirtaki::engine {

LowRank::LowRank(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)), slices_(this->spec().slices, net()) {}

compression::LowRankFactors& LowRank::factors(const Stripe& stripe) const {
  compression::LowRankFactors* const found = slices_.codec_state(stripe).coder().factors();
  SRT_CHECK(found != nullptr);
  return *found;
}

kernels::Feedback LowRank::arrays(const Stripe& stripe) const {
  return slices_.codec_state(stripe).feedback(stripe.gradient, stripe.piece.offset);
}

void LowRank::begin() {
  std::size_t p_bytes = slices_.count_bytes();
  std::size_t q_bytes = 0;
  for (const Stripe& stripe : slices_.stripes()) {
    p_bytes += factors(stripe).p_bytes();
    q_bytes += factors(stripe).q_bytes();
  }
  p_ = buffers().take(p_bytes);
  q_ = buffers().take(q_bytes);
  std::byte* p = p_.bytes().data() + slices_.count_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    // Projects a gradient that is not finite, too, so that all ranks advance the sequence of initial Q alike.
    factors(stripe).project(arrays(stripe), p);
    if (!slices_.check_finite(stripe)) {
      std::fill_n(p, factors(stripe).p_bytes(), std::byte{0});
    }
    p += factors(stripe).p_bytes();
  }
  slices_.write_counts(p_.bytes());
  allreduce(0, p_.bytes(), [this] { return project_back(); });
}

Status LowRank::project_back() {
  SRT_TRY(slices_.read_counts(p_.bytes(), size()));
  std::byte* p = p_.bytes().data() + slices_.count_bytes();
  std::byte* q = q_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    if (slices_.carries(stripe.slice)) {
      factors(stripe).back(arrays(stripe), p, q);
    } else {
      std::fill_n(q, factors(stripe).q_bytes(), std::byte{0});
    }
    p += factors(stripe).p_bytes();
    q += factors(stripe).q_bytes();
  }
  allreduce(1, q_.bytes(), [this] { return finish(); });
  return {};
}

Status LowRank::finish() {
  const std::byte* p = p_.bytes().data() + slices_.count_bytes();
  std::byte* q = q_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    const std::size_t q_bytes = factors(stripe).q_bytes();
    const auto q_numel = static_cast<std::int64_t>(q_bytes / sizeof(float));
    // A sum may overflow although no term does; all ranks see the same sum.
    if (!kernels::all_finite(DType::kF32, q, q_numel)) {
      slices_.mark_bad(stripe.slice);
    }
    if (slices_.carries(stripe.slice)) {
      kernels::divide_by(DType::kF32, q, q_numel, size());
      const BufferPool::Buffer product = buffers().take(stripe.size_bytes());
      factors(stripe).rebuild(arrays(stripe), p, q, product.bytes().data());
      std::ranges::copy(product.bytes(), stripe.gradient);
      // Q was divided by size(), so the product is the mean already.
      slices_.scale(stripe, 1, spec().postscale * (static_cast<double>(size()) / divisor()));
    } else {
      slices_.fill(stripe);
    }
    p += factors(stripe).p_bytes();
    q += q_bytes;
  }
  return {};
}

std::shared_ptr<Reduction> make_lowrank_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  return std::make_shared<LowRank>(std::move(spec), deps, std::move(note));
}

}  // namespace sirtaki::engine
