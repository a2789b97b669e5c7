#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/twobit/code.h"
#include "kernels/twobit/twobit.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {

std::size_t twobit_bytes(std::int64_t n) {
  SRT_CHECK(n >= 0);
  return 2 * ((static_cast<std::size_t>(n) + 7) / 8);
}

int twobit_count_bits(int most) {
  SRT_CHECK(most >= 1 && most <= kTwobitMostCounted);
  return static_cast<int>(std::bit_width(2 * static_cast<unsigned>(most)));
}

std::size_t twobit_packed_bytes(int most, std::int64_t n) {
  return static_cast<std::size_t>(twobit_count_bits(most)) * (twobit_bytes(n) / 2);
}

namespace ref {
namespace {

using Float = Plain<float>;

bool bit(const std::byte* plane, std::size_t i) {
  return (plane[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
}
void set_bit(std::byte* plane, std::size_t i) {
  plane[i / 8] |= std::byte{1} << (i % 8);
}

// Returns 1, -1 or 0.
int code(const std::byte* planes, std::int64_t n, std::size_t i) {
  const std::byte* minus = planes + twobit_bytes(n) / 2;
  return static_cast<int>(bit(planes, i)) - static_cast<int>(bit(minus, i));
}

class Magnitude {
 public:
  void add(std::size_t i, float a) {
    lanes_[i % 16] += std::fabs(a);
    if (i % 1024 == 1023) {
      flush();
    }
  }
  double sum() {
    flush();
    return canonical(sum_);
  }

 private:
  void flush() {
    for (float& lane : lanes_) {
      sum_ += static_cast<double>(lane);
      lane = 0;
    }
  }
  float lanes_[16] = {};
  double sum_ = 0;
};

}  // namespace

TwobitStats twobit_encode(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes) {
  const TwobitLevel level = twobit_level(exponent);
  std::byte* const minus = planes + twobit_bytes(n) / 2;
  std::memset(planes, 0, twobit_bytes(n));
  TwobitStats stats;
  Magnitude magnitude;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t at = i * sizeof(float);
    const float a = element(arrays, i);
    stats.finite = stats.finite && std::isfinite(a);
    magnitude.add(i, a);
    const TwobitTaken taken = twobit_take(level, a);
    if (taken.code != 0) {
      set_bit(taken.code > 0 ? planes : minus, i);
      ++stats.sent;
    }
    if (arrays.left != nullptr) {
      Float::store(taken.left, arrays.left + at);
    }
  }
  stats.magnitude = magnitude.sum();
  return stats;
}

void twobit_sum(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    float sum = 0;
    for (const TwobitPart& part : parts) {
      sum += std::ldexp(static_cast<float>(code(part.planes, n, i)), part.exponent);
    }
    Float::store(sum, out + i * sizeof(float));
  }
}

void twobit_count(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    int count = 0;
    for (const std::byte* one : planes) {
      count += code(one, n, i);
    }
    Plain<std::int8_t>::store(static_cast<std::int8_t>(count), counts + i);
  }
}

void twobit_from_counts(int exponent, std::int64_t n, const std::byte* counts, std::byte* out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const auto count = static_cast<float>(Plain<std::int8_t>::load(counts + i));
    Float::store(count * std::ldexp(1.0F, exponent), out + i * sizeof(float));
  }
}

void twobit_pack_counts(int most, std::int64_t n, const std::byte* counts, std::byte* planes) {
  const std::size_t plane = twobit_bytes(n) / 2;
  std::memset(planes, 0, twobit_packed_bytes(most, n));
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const auto value = static_cast<unsigned>(Plain<std::int8_t>::load(counts + i) + most);
    for (std::size_t k = 0; k < static_cast<std::size_t>(twobit_count_bits(most)); ++k) {
      if ((value >> k & 1U) != 0) {
        set_bit(planes + k * plane, i);
      }
    }
  }
}

bool twobit_unpack_counts(int most, std::int64_t n, const std::byte* planes, std::byte* counts) {
  const std::size_t plane = twobit_bytes(n) / 2;
  for (std::size_t i = 0; i < 8 * plane; ++i) {
    int value = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(twobit_count_bits(most)); ++k) {
      value |= static_cast<int>(bit(planes + k * plane, i)) << k;
    }
    if (value > (i < static_cast<std::size_t>(n) ? 2 * most : 0)) {
      return false;
    }
    if (i < static_cast<std::size_t>(n)) {
      Plain<std::int8_t>::store(static_cast<std::int8_t>(value - most), counts + i);
    }
  }
  return true;
}

}  // namespace ref
}  // namespace sirtaki::kernels
