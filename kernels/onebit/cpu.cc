#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/onebit/onebit.h"
#include "kernels/onebit/scale.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/onebit/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/magnitude/magnitude-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_RVV || (HWY_TARGET & (HWY_SVE | HWY_SVE2)) || !HWY_HAVE_FLOAT64

// Targets with one lane use the reference; so do those with vectors of unknown length, which cannot be elements of
// arrays.
bool encode_target(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  return ref::onebit_encode(block, n, arrays, payload);
}
void sum_target(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  ref::onebit_sum(block, n, payloads, out);
}

#else

using Lane = PlainLane<float>;
constexpr std::size_t kLanes = hn::MaxLanes(F32Tag());
// Elements whose signs fit into one 64-bit word.
constexpr std::size_t kChunk = kOnebitChunk;

template <class M>
std::uint64_t bits_of(M mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(F32Tag(), mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

// Encodes up to 64 elements; returns their signs.
template <bool kFeedback>
std::uint64_t encode_chunk(F32Vec scale, const Feedback& arrays, std::size_t first, std::size_t count) {
  const F32Tag d;
  std::uint64_t signs = 0;
  for (std::size_t v = 0; v * kLanes < count; ++v) {
    const std::size_t i = first + v * kLanes;
    const std::size_t here = count - v * kLanes;
    const auto a = load_sums<kFeedback>(arrays, i, here);
    const auto negative = hn::Lt(a, hn::Zero(d));
    signs |= bits_of(negative) << (v * kLanes);
    if constexpr (kFeedback) {
      const auto left = hn::Sub(a, hn::IfThenElse(negative, hn::Neg(scale), scale));
      store_up_to<Lane>(left, arrays.left + i * sizeof(float), here);
    }
  }
  return signs;
}

template <bool kFeedback>
void keep_block(const Feedback& arrays, std::size_t first, std::size_t end) {
  if constexpr (kFeedback) {
    for (std::size_t i = first; i < end; i += kLanes) {
      store_up_to<Lane>(load_sums<true>(arrays, i, end - i), arrays.left + i * sizeof(float), end - i);
    }
  }
}

template <bool kFeedback>
void encode_block(std::int8_t exponent, std::size_t first, std::size_t end, const Feedback& arrays, std::byte* signs) {
  const std::size_t bytes = (end - first + 7) / 8;
  if (exponent == kOnebitNothing || exponent == kOnebitNotFinite) {
    std::memset(signs + first / 8, 0, bytes);
    keep_block<kFeedback>(arrays, first, end);
    return;
  }
  const auto scale = hn::Set(F32Tag(), onebit_scale(exponent));
  std::size_t i = first;
  for (; i + kChunk <= end; i += kChunk) {
    const std::uint64_t word = encode_chunk<kFeedback>(scale, arrays, i, kChunk);
    std::memcpy(signs + i / 8, &word, sizeof(word));
  }
  if (i < end) {
    const std::uint64_t word = encode_chunk<kFeedback>(scale, arrays, i, end - i);
    std::memcpy(signs + i / 8, &word, (end - i + 7) / 8);
  }
}

// Encodes block by block, so that the elements of a block are in the nearest cache when they are read again.
template <bool kFeedback>
bool encode_as(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  const std::size_t blocks = onebit_blocks(block, n);
  bool finite = true;
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t first = b * static_cast<std::size_t>(block);
    const std::size_t end = std::min(first + static_cast<std::size_t>(block), static_cast<std::size_t>(n));
    const std::int8_t exponent = onebit_exponent(magnitude_of(arrays, first, end), end - first);
    payload[b] = static_cast<std::byte>(exponent);
    encode_block<kFeedback>(exponent, first, end, arrays, payload + blocks);
    finite = finite && exponent != kOnebitNotFinite;
  }
  return finite;
}

bool encode_target(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  return arrays.residual == nullptr ? encode_as<false>(block, n, arrays, payload)
                                    : encode_as<true>(block, n, arrays, payload);
}

void sum_target(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  const F32Tag d;
  const std::size_t blocks = onebit_blocks(block, n);
  const auto size = static_cast<std::size_t>(n);
  for (std::size_t i = 0; i < size; i += kChunk) {
    const std::size_t count = std::min(kChunk, size - i);
    F32Vec sums[kChunk / kLanes];
    for (F32Vec& sum : sums) {
      sum = hn::Zero(d);
    }
    for (const std::byte* payload : payloads) {
      const auto exponent = std::to_integer<std::int8_t>(payload[i / static_cast<std::size_t>(block)]);
      const auto scale = hn::Set(d, onebit_scale(exponent));
      std::uint64_t word = 0;
      std::memcpy(&word, payload + blocks + i / 8, (count + 7) / 8);
      for (std::size_t v = 0; v < kChunk / kLanes; ++v) {
        const std::uint64_t here = word >> (v * kLanes);
        const auto negative = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&here));
        sums[v] = hn::Add(sums[v], hn::IfThenElse(negative, hn::Neg(scale), scale));
      }
    }
    for (std::size_t v = 0; v * kLanes < count; ++v) {
      store_up_to<Lane>(canonical(d, sums[v]), out + (i + v * kLanes) * sizeof(float), count - v * kLanes);
    }
  }
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(encode_target);
HWY_EXPORT(sum_target);

bool onebit_encode(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  SRT_CHECK(onebit_bytes(block, n) > 0 || n == 0);
  SRT_CHECK(arrays.valid());
  return HWY_DYNAMIC_DISPATCH(encode_target)(block, n, arrays, payload);
}

void onebit_sum(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  SRT_CHECK(onebit_bytes(block, n) > 0 || n == 0);
  HWY_DYNAMIC_DISPATCH(sum_target)(block, n, payloads, out);
}

}  // namespace sirtaki::kernels
#endif
