// Arrays for kernel tests: special and random values of every dtype at any alignment, and the SIMD targets to test.
#pragma once

#include <hwy/targets.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

using Random = std::mt19937_64;

// Memory whose first byte lies `shift` bytes after a 64-byte border, with guard bytes around it.
class Array {
 public:
  Array(std::size_t bytes, std::size_t shift) : storage_(bytes + 2 * kGuard + 64, kFill), bytes_(bytes) {
    const auto base = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuard;
    start_ = kGuard + (64 - base % 64) % 64 + shift % 32;
  }
  std::byte* data() { return storage_.data() + start_; }
  const std::byte* data() const { return storage_.data() + start_; }
  std::size_t size() const { return bytes_; }
  std::vector<std::byte> copy() const { return {data(), data() + bytes_}; }
  bool guards_intact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      if ((i < start_ || i >= start_ + bytes_) && storage_[i] != kFill) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kFill{0xA5};
  std::vector<std::byte> storage_;
  std::size_t bytes_;
  std::size_t start_ = 0;
};

inline constexpr std::size_t kHalves = 65536;  // number of float16 or bfloat16 values

// Returns lengths one by one for the first seeds, random ones below `lengths` for others.
inline std::size_t random_length(std::uint64_t seed, std::size_t lengths, Random& random) {
  return seed < 6 ? static_cast<std::size_t>(seed) : random() % lengths;
}

template <class T>
T pick(const std::vector<T>& values, Random& random) {
  return values[random() % values.size()];
}

// Returns the bits of one element: a special value in one of three cases, a number near 1 in another, any bits
// otherwise.
inline std::uint64_t element_bits(DType dtype, Random& random) {
  static const std::vector<std::uint64_t> f16 = {0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01,
                                                 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00, 0x0400};
  static const std::vector<std::uint64_t> bf16 = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81,
                                                  0x0001, 0x807F, 0x7F7F, 0xFF7F, 0x3F80, 0x0080};
  static const std::vector<std::uint64_t> f32 = {
      0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0x00000001, 0x807FFFFF,
      0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x387FE000, 0x7F7F8000};
  static const std::vector<std::uint64_t> f64 = {0,
                                                 0x8000000000000000,
                                                 0x7FF0000000000000,
                                                 0xFFF0000000000000,
                                                 0x7FF8000000000000,
                                                 0xFFF8000000012345,
                                                 0x7FF0000000000001,
                                                 1,
                                                 0x800FFFFFFFFFFFFF,
                                                 0x7FEFFFFFFFFFFFFF,
                                                 0x3FF0000000000000,
                                                 0x36A0000000000000};
  static const std::vector<std::uint64_t> integer = {0,      1,          ~0ULL,      0x7F,   0x80, 0x7FFF,
                                                     0x8000, 0x7FFFFFFF, 0x80000000, 1 << 4, 3,    0x7FFFFFFFFFFFFFFF};
  const auto kind = random() % 3;
  const double near_one = 0.25 + static_cast<double>(random() % 4096) / 1024.0;
  switch (dtype) {
    case DType::kF16:
      return kind == 0 ? pick(f16, random) : (kind == 1 ? 0x3800 + random() % 0x0C00 : random());
    case DType::kBF16:
      return kind == 0 ? pick(bf16, random) : (kind == 1 ? 0x3F00 + random() % 0x0100 : random());
    case DType::kF32:
      return kind == 0 ? pick(f32, random)
                       : (kind == 1 ? std::bit_cast<std::uint32_t>(static_cast<float>(near_one)) : random());
    case DType::kF64:
      return kind == 0 ? pick(f64, random) : (kind == 1 ? std::bit_cast<std::uint64_t>(near_one) : random());
    case DType::kBool:
      return kind == 0 ? random() : random() % 2;
    default:
      return kind == 0 ? pick(integer, random) : random();
  }
}

inline void fill(DType dtype, Array& array, Random& random) {
  const std::size_t size = dtype_size(dtype);
  for (std::size_t at = 0; at < array.size(); at += size) {
    const std::uint64_t bits = element_bits(dtype, random);
    std::memcpy(array.data() + at, &bits, size);
  }
}

inline std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int i = 0; i < kDTypeCount; ++i) {
    all.push_back(static_cast<DType>(i));
  }
  return all;
}

// Calls body() for every SIMD target that is built and that this machine can run, with the name of the target.
template <class Body>
void on_every_target(Body body) {
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  for (std::int64_t left = supported; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(std::string(hwy::TargetName(target)));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace sirtaki::kernels
