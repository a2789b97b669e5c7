#include "compression/low_rank_factors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/base/wire.h"

namespace sirtaki::compression {
namespace {

constexpr std::uint32_t kAll = ~std::uint32_t{0};

// Numbers spread evenly over (-1, 1), by the mixing function of SplitMix64 (Steele, Lea, Flood, 2014).
float number(std::uint64_t index) {
  std::uint64_t bits = index * 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
  bits ^= bits >> 31;
  return (static_cast<float>(bits >> 41) + 0.5F) * 0x1p-22F - 1.0F;
}

}  // namespace

kernels::LowRank matrix_of(const Shape& shape, std::int64_t rank) {
  const std::int64_t cols = shape.numel / shape.rows;
  return {shape.rows, cols, static_cast<std::int32_t>(std::min({rank, shape.rows, cols}))};
}

LowRankFactors::LowRankFactors(const Shape& shape, std::int64_t rank, bool warm_start)
    : shape_(matrix_of(shape, rank)),
      warm_start_(warm_start),
      q_(static_cast<std::size_t>(shape_.cols * shape_.rank)),
      fresh_(kAll) {}

void LowRankFactors::start(std::int32_t vector) {
  const auto cols = static_cast<std::size_t>(shape_.cols);
  float* const q = q_.data() + static_cast<std::size_t>(vector) * cols;
  const std::uint64_t first = ++starts_ << 32;
  for (std::size_t i = 0; i < cols; ++i) {
    q[i] = number(first + i);
  }
}

void LowRankFactors::project(const kernels::Feedback& whole, std::byte* p) {
  for (std::int32_t vector = 0; vector < shape_.rank; ++vector) {
    if ((fresh_ >> vector & 1U) != 0) {
      start(vector);
    }
  }
  kernels::low_rank_project(shape_, whole, std::as_bytes(std::span(q_)).data(), p);
}

void LowRankFactors::back(const kernels::Feedback& whole, std::byte* p, std::byte* q) {
  const std::uint32_t gone = kernels::orthonormalise(shape_.rows, shape_.rank, p);
  fresh_ = warm_start_ ? gone : kAll;
  kernels::low_rank_project_back(shape_, whole, p, q);
}

void LowRankFactors::rebuild(const kernels::Feedback& whole, const std::byte* p, const std::byte* q, std::byte* out) {
  kernels::low_rank_rebuild(shape_, whole, p, q, out);
  std::memcpy(q_.data(), q, q_bytes());
}

std::vector<std::byte> LowRankFactors::state() const {
  if (starts_ == 0) {
    return {};
  }
  WireWriter out;
  out.put(fresh_);
  out.put(starts_);
  out.put_list(q_);
  return std::move(out).take();
}

void LowRankFactors::restore(ConstBytes state) {
  WireReader in(state);
  const auto fresh = in.get<std::uint32_t>();
  const auto starts = in.get<std::uint64_t>();
  std::vector<float> q = in.get_list<float>();
  const bool sane = q.size() == q_.size() && std::ranges::all_of(q, [](float value) { return std::isfinite(value); });
  if (in.finish("factors of low rank").ok() && sane) {
    fresh_ = fresh;
    starts_ = starts;
    q_ = std::move(q);
  }
}

}  // namespace sirtaki::compression
