#include <cmath>
#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/low_rank/low_rank.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

using Float = ref::Plain<float>;

// Part of the length of a linearly dependent vector that rounding of float32 may leave.
constexpr double kNothing = 1e-5;
constexpr std::size_t kSums = 8;

class Vectors {
 public:
  Vectors(std::int64_t n, std::byte* data) : n_(static_cast<std::size_t>(n)), data_(data) {}

  double dot(std::size_t one, std::size_t other) const {
    const std::byte* const a = at(one);
    const std::byte* const b = at(other);
    double sums[kSums] = {};
    std::size_t i = 0;
    for (; i + kSums <= n_; i += kSums) {
      for (std::size_t s = 0; s < kSums; ++s) {
        sums[s] += load(a, i + s) * load(b, i + s);
      }
    }
    for (std::size_t s = 0; i < n_; ++i, ++s) {
      sums[s] += load(a, i) * load(b, i);
    }
    for (std::size_t half = kSums / 2; half > 0; half /= 2) {
      for (std::size_t s = 0; s < half; ++s) {
        sums[s] += sums[s + half];
      }
    }
    return sums[0];
  }

  // vector -= factor * other
  void subtract(std::size_t vector, double factor, std::size_t other) {
    std::byte* const to = at(vector);
    const std::byte* const from = at(other);
    for (std::size_t i = 0; i < n_; ++i) {
      store(load(to, i) - factor * load(from, i), to, i);
    }
  }
  void scale(std::size_t vector, double factor) {
    std::byte* const to = at(vector);
    for (std::size_t i = 0; i < n_; ++i) {
      store(load(to, i) * factor, to, i);
    }
  }
  void clear(std::size_t vector) {
    for (std::size_t i = 0; i < n_; ++i) {
      store(0.0, at(vector), i);
    }
  }

 private:
  std::byte* at(std::size_t vector) const { return data_ + vector * n_ * sizeof(float); }
  static double load(const std::byte* from, std::size_t i) {
    return static_cast<double>(Float::load(from + i * sizeof(float)));
  }
  static void store(double value, std::byte* to, std::size_t i) {
    Float::store(static_cast<float>(value), to + i * sizeof(float));
  }

  std::size_t n_;
  std::byte* data_;
};

}  // namespace

std::uint32_t orthonormalise(std::int64_t n, std::int32_t rank, std::byte* vectors) {
  SRT_CHECK(n >= 0 && rank >= 1 && rank <= kMostRank);
  Vectors all(n, vectors);
  std::uint32_t gone = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(rank); ++k) {
    // Normalises to length 1 first, so that factors fit into float32 at any scale of the gradient.
    const double before = std::sqrt(all.dot(k, k));
    double length = 0;
    if (before > 0 && std::isfinite(before)) {
      all.scale(k, 1 / before);
      for (std::size_t other = 0; other < 2 * k; ++other) {
        all.subtract(k, all.dot(k, other % k), other % k);
      }
      length = std::sqrt(all.dot(k, k));
    }
    if (length >= kNothing) {
      all.scale(k, 1 / length);
    } else {
      all.clear(k);
      gone |= std::uint32_t{1} << k;
    }
  }
  return gone;
}

}  // namespace sirtaki::kernels
