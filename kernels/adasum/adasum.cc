#include "kernels/adasum/adasum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cast/cast.h"

namespace sirtaki::kernels {
namespace {

constexpr std::size_t kChunk = 512;
constexpr std::size_t kLanes = 8;
// A squared norm below this fraction of the summed magnitudes of its terms is the rounding error of zero.
constexpr double kRoundedZero = 1e-12;

using Chunk = std::array<double, kChunk>;

// Elements after the last one become zeros.
void load(DType dtype, const std::byte* in, std::size_t n, Chunk& out) {
  std::array<float, kChunk> narrow{};
  switch (dtype) {
    case DType::kF64:
      std::memcpy(out.data(), in, n * sizeof(double));
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(n), out.end(), 0.0);
      return;
    case DType::kF32:
      std::memcpy(narrow.data(), in, n * sizeof(float));
      break;
    default:
      cast(dtype, in, DType::kF32, reinterpret_cast<std::byte*>(narrow.data()), static_cast<std::int64_t>(n));
  }
  std::copy(narrow.begin(), narrow.end(), out.begin());
}

void store(DType dtype, const Chunk& in, std::size_t n, std::byte* out) {
  if (dtype == DType::kF64) {
    std::memcpy(out, in.data(), n * sizeof(double));
    return;
  }
  std::array<float, kChunk> narrow{};
  std::transform(in.begin(), in.end(), narrow.begin(), [](double value) { return static_cast<float>(value); });
  if (dtype == DType::kF32) {
    std::memcpy(out, narrow.data(), n * sizeof(float));
  } else {
    cast(DType::kF32, reinterpret_cast<const std::byte*>(narrow.data()), dtype, out, static_cast<std::int64_t>(n));
  }
}

double dot(const Chunk& a, const Chunk& b) {
  std::array<double, kLanes> lanes{};
  for (std::size_t i = 0; i < kChunk; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

template <class Visit>
void for_chunks(DType dtype, std::int64_t n, const Visit& visit) {
  const auto count = static_cast<std::size_t>(n);
  for (std::size_t at = 0; at < count; at += kChunk) {
    visit(at * dtype_size(dtype), std::min(kChunk, count - at));
  }
}

class Weights {
 public:
  Weights(std::span<const double> sums, std::size_t count) : sums_(sums), weights_(count, 1.0) {}

  std::vector<double> take() && {
    combine(0, weights_.size());
    return std::move(weights_);
  }

 private:
  struct Product {
    double value = 0;
    bool zero = false;
  };

  double product(std::size_t i, std::size_t j) const {
    return sums_[std::max(i, j) * (std::max(i, j) + 1) / 2 + std::min(i, j)];
  }

  // Returns the dot product of the combined arrays [begin, end) with the combined arrays [from, to).
  Product product(std::size_t begin, std::size_t end, std::size_t from, std::size_t to) const {
    double value = 0;
    double magnitude = 0;
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = from; j < to; ++j) {
        const double term = weights_[i] * weights_[j] * product(i, j);
        value += term;
        magnitude += std::abs(term);
      }
    }
    return {value, value <= kRoundedZero * magnitude};
  }

  void scale(std::size_t begin, std::size_t end, double factor) {
    for (std::size_t i = begin; i < end; ++i) {
      weights_[i] *= factor;
    }
  }

  void combine(std::size_t begin, std::size_t end) {
    if (end - begin < 2) {
      return;
    }
    const std::size_t middle = begin + (end - begin + 1) / 2;
    combine(begin, middle);
    combine(middle, end);
    const Product left = product(begin, middle, begin, middle);
    const Product right = product(middle, end, middle, end);
    if (left.zero || right.zero) {
      return;
    }
    const double both = product(begin, middle, middle, end).value;
    scale(begin, middle, 1 - both / (2 * left.value));
    scale(middle, end, 1 - both / (2 * right.value));
  }

  std::span<const double> sums_;
  std::vector<double> weights_;
};

}  // namespace

void add_dot_products(DType dtype, std::span<const std::byte* const> arrays, std::int64_t n, std::span<double> sums) {
  std::vector<Chunk> chunks(arrays.size());
  for_chunks(dtype, n, [&](std::size_t at, std::size_t count) {
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      load(dtype, arrays[i] + at, count, chunks[i]);
      for (std::size_t j = 0; j <= i; ++j) {
        sums[i * (i + 1) / 2 + j] += dot(chunks[i], chunks[j]);
      }
    }
  });
}

std::vector<double> adasum_weights(std::span<const double> sums, std::size_t count) {
  return Weights(sums, count).take();
}

void weighted_sum(DType dtype, std::span<const std::byte* const> arrays, std::span<const double> weights,
                  std::byte* out, std::int64_t n) {
  Chunk one;
  for_chunks(dtype, n, [&](std::size_t at, std::size_t count) {
    Chunk sum{};
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      load(dtype, arrays[k] + at, count, one);
      for (std::size_t i = 0; i < kChunk; ++i) {
        sum[i] += weights[k] * one[i];
      }
    }
    store(dtype, sum, count, out + at);
  });
}

}  // namespace sirtaki::kernels
