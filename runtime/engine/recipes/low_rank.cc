#include "runtime/engine/recipes/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/finite/finite.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

namespace sirtaki::engine {
namespace {

constexpr std::size_t kCountBytes = 2 * sizeof(float);  // of a slice: not finite, present

}  // namespace

LowRank::LowRank(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)), slices_(this->spec().slices) {}

compression::LowRankFactors& LowRank::factors(const Stripe& stripe) const {
  compression::LowRankFactors* const found = slices_.memory(stripe).coder().factors();
  SRT_CHECK(found != nullptr);
  return *found;
}

kernels::Feedback LowRank::arrays(const Stripe& stripe) const {
  return slices_.memory(stripe).feedback(stripe.gradient, stripe.piece.offset);
}

void LowRank::begin() {
  std::size_t p_bytes = kCountBytes * spec().slices.size();
  std::size_t q_bytes = 0;
  for (const Stripe& stripe : slices_.stripes()) {
    p_bytes += factors(stripe).p_bytes();
    q_bytes += factors(stripe).q_bytes();
  }
  p_ = buffers().take(p_bytes);
  q_ = buffers().take(q_bytes);
  std::byte* count = p_.bytes().data();
  std::byte* p = count + kCountBytes * spec().slices.size();
  for (const Stripe& stripe : slices_.stripes()) {
    // Also where it is not finite, so that all ranks count starts of Q alike.
    factors(stripe).project(arrays(stripe), p);
    const bool finite = slices_.look(stripe);
    if (!finite) {
      std::fill_n(p, factors(stripe).p_bytes(), std::byte{0});
    }
    const float counts[] = {finite ? 0.0F : 1.0F, spec().slices[stripe.slice].absent ? 0.0F : 1.0F};
    std::memcpy(count, counts, kCountBytes);
    count += kCountBytes;
    p += factors(stripe).p_bytes();
  }
  allreduce(0, p_.bytes(), [this] { return project_back(); });
}

Status LowRank::read_counts() {
  const std::byte* count = p_.bytes().data();
  for (std::size_t s = 0; s < spec().slices.size(); ++s) {
    float counts[2];
    std::memcpy(counts, count, kCountBytes);
    count += kCountBytes;
    for (const float value : counts) {
      if (!(value >= 0 && value <= static_cast<float>(size()) && value == std::floor(value))) {
        return slices_.corrupt_from(-1, s, "the number of ranks that have a gradient is no such number");
      }
    }
    if (counts[0] > 0) {
      slices_.mark_bad(s);
    }
    if (counts[1] > 0) {
      slices_.mark_present(s);
    }
  }
  return {};
}

Status LowRank::project_back() {
  SRT_TRY(read_counts());
  std::byte* p = p_.bytes().data() + kCountBytes * spec().slices.size();
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
  const std::byte* p = p_.bytes().data() + kCountBytes * spec().slices.size();
  std::byte* q = q_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    const std::size_t q_bytes = factors(stripe).q_bytes();
    const auto q_numel = static_cast<std::int64_t>(q_bytes / sizeof(float));
    // A sum may be too large though no part of it is; all ranks see the same.
    if (!kernels::all_finite(DType::kF32, q, q_numel)) {
      slices_.mark_bad(stripe.slice);
    }
    if (slices_.carries(stripe.slice)) {
      kernels::divide_by(DType::kF32, q, q_numel, size());
      const BufferPool::Buffer product = buffers().take(stripe.size_bytes());
      factors(stripe).rebuild(arrays(stripe), p, q, product.bytes().data());
      std::ranges::copy(product.bytes(), stripe.gradient);
      const double factor = (spec().op == ReduceOp::kAverage ? 1.0 : size()) * spec().postscale;
      if (factor != 1.0) {
        kernels::scale(DType::kF32, stripe.gradient, stripe.piece.numel, factor);
      }
    } else {
      slices_.fill(stripe);
    }
    p += factors(stripe).p_bytes();
    q += q_bytes;
  }
  return {};
}

}  // namespace sirtaki::engine
