#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/half/elements.h"
#include "kernels/twobit/twobit.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/twobit/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_RVV || (HWY_TARGET & (HWY_SVE | HWY_SVE2))

// Targets with one lane use the reference; so do those with vectors of unknown length, which cannot be elements of
// arrays.
TwobitStats encode_target(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes) {
  return ref::twobit_encode(exponent, n, arrays, planes);
}
void sum_target(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out) {
  ref::twobit_sum(parts, n, out);
}
void count_target(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts) {
  ref::twobit_count(planes, n, counts);
}
void from_counts_target(int exponent, std::int64_t n, const std::byte* counts, std::byte* out) {
  ref::twobit_from_counts(exponent, n, counts, out);
}
void pack_target(int most, std::int64_t n, const std::byte* counts, std::byte* planes) {
  ref::twobit_pack_counts(most, n, counts, planes);
}
bool unpack_target(int most, std::int64_t n, const std::byte* planes, std::byte* counts) {
  return ref::twobit_unpack_counts(most, n, planes, counts);
}

#else

using Lane = PlainLane<float>;
constexpr std::size_t kLanes = hn::MaxLanes(F32Tag());

// Elements of a chunk: as many as one 64-bit word of each plane holds.
constexpr std::size_t kChunk = 64;
constexpr std::size_t kBlock = 1024;
constexpr std::size_t kSums = 16;
constexpr std::size_t kSumVectors = kSums / kLanes;

// Words of planes; the length of a plane need not be a multiple of 8 bytes.
inline std::uint64_t load_word(const std::byte* from, std::size_t bytes) {
  std::uint64_t word = 0;
  // A separate call with a constant size compiles to a single load.
  if (bytes >= sizeof(word)) {
    std::memcpy(&word, from, sizeof(word));
  } else {
    std::memcpy(&word, from, bytes);
  }
  return word;
}

// Equals std::ldexp(1.0F, exponent), without a call in inner loops.
inline float power_of_two(int exponent) {
  return std::bit_cast<float>(exponent >= -126 ? static_cast<std::uint32_t>(exponent + 127) << 23
                                               : std::uint32_t{1} << (exponent + 149));
}

template <class D, class M>
std::uint64_t bits_of(D d, M mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}
template <class D>
auto mask_of(D d, std::uint64_t bits) {
  return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
}

struct Encoder {
  F32Vec t;
  F32Vec least;
  F32Vec limit;
  F32Vec sums[kSumVectors];
  I32Vec largest = hn::Zero(I32Tag());
  double magnitude = 0;
  std::int64_t sent = 0;

  explicit Encoder(int exponent)
      : t(hn::Set(F32Tag(), std::ldexp(1.0F, exponent))),
        least(hn::Set(F32Tag(), std::max(std::ldexp(0.5F, exponent), std::numeric_limits<float>::denorm_min()))),
        limit(hn::Set(F32Tag(), std::ldexp(1.0F, exponent + 24))) {
    clear_sums();
  }
  void clear_sums() {
    for (F32Vec& sum : sums) {
      sum = hn::Zero(F32Tag());
    }
  }
  void add_sums() {
    HWY_ALIGN float lanes[kSums];
    for (std::size_t v = 0; v < kSumVectors; ++v) {
      hn::Store(sums[v], F32Tag(), lanes + v * kLanes);
    }
    for (const float lane : lanes) {
      magnitude += static_cast<double>(lane);
    }
    clear_sums();
  }

  // Returns the residual; `mask` becomes the lanes that are sent.
  F32Vec take(F32Vec a, F32Vec& sum, hn::Mask<F32Tag>& mask) {
    const auto size = hn::Abs(a);
    sum = hn::Add(sum, size);
    largest = hn::Max(largest, hn::BitCast(I32Tag(), size));
    mask = hn::And(hn::Ge(size, least), hn::Lt(size, limit));
    return hn::Sub(a, hn::IfThenElseZero(mask, hn::CopySignToAbs(t, a)));
  }

  // kWhole: the chunk has all 64 elements.
  template <bool kFeedback, bool kWhole>
  void chunk(const Feedback& arrays, std::size_t first, std::size_t count, std::uint64_t (&words)[2]) {
    const F32Tag d;
    std::uint64_t travels = 0;
    std::uint64_t negative = 0;
    for (std::size_t v = 0; v < kChunk / kLanes && (kWhole || v * kLanes < count); ++v) {
      const std::size_t at = (first + v * kLanes) * sizeof(float);
      const std::size_t here = kWhole ? kLanes : std::min(kLanes, count - v * kLanes);
      auto a = load<kWhole>(arrays.gradient + at, here);
      if constexpr (kFeedback) {
        a = hn::Add(a, load<kWhole>(arrays.residual + at, here));
      }
      a = canonical(d, a);
      hn::Mask<F32Tag> mask;
      const auto left = take(a, sums[v % kSumVectors], mask);
      if constexpr (kFeedback) {
        kWhole ? Lane::store(left, arrays.left + at) : store_first<Lane>(left, arrays.left + at, here);
      }
      travels |= bits_of(d, mask) << (v * kLanes);
      negative |= bits_of(d, hn::Lt(a, hn::Zero(d))) << (v * kLanes);
    }
    sent += std::popcount(travels);
    words[0] = travels & ~negative;
    words[1] = travels & negative;
  }

  // Loads a vector; lanes after the last element are zero.
  template <bool kWhole>
  static F32Vec load(const std::byte* from, std::size_t count) {
    return kWhole || count == kLanes ? Lane::load(from) : load_first<Lane>(from, count);
  }
};

template <bool kFeedback>
TwobitStats encode_as(int exponent, std::size_t n, const Feedback& arrays, std::byte* planes) {
  const std::size_t plane = (n + 7) / 8;
  Encoder encoder(exponent);
  std::uint64_t words[2];
  std::size_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    encoder.chunk<kFeedback, true>(arrays, i, kChunk, words);
    std::memcpy(planes + i / 8, &words[0], 8);
    std::memcpy(planes + plane + i / 8, &words[1], 8);
    if (i % kBlock == kBlock - kChunk) {
      encoder.add_sums();
    }
  }
  if (i < n) {
    encoder.chunk<kFeedback, false>(arrays, i, n - i, words);
    std::memcpy(planes + i / 8, &words[0], plane - i / 8);
    std::memcpy(planes + plane + i / 8, &words[1], plane - i / 8);
  }
  encoder.add_sums();
  const std::int32_t largest = hn::GetLane(hn::MaxOfLanes(I32Tag(), encoder.largest));
  return {largest < 0x7F800000, encoder.sent, ref::canonical(encoder.magnitude)};
}

TwobitStats encode_target(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes) {
  const auto count = static_cast<std::size_t>(n);
  return arrays.residual == nullptr ? encode_as<false>(exponent, count, arrays, planes)
                                    : encode_as<true>(exponent, count, arrays, planes);
}

using CountTag = hn::ScalableTag<std::int8_t>;
constexpr std::size_t kCountLanes = hn::MaxLanes(CountTag());

// Writes the counts of the chunk at byte `at` of the planes. planes_of(k) is the k-th of `many` planes.
template <class PlanesOf>
void count_chunk(PlanesOf planes_of, std::size_t many, std::size_t at, std::size_t plane, std::int8_t* counts) {
  const CountTag d;
  hn::Vec<CountTag> sums[kChunk / kCountLanes];
  for (auto& sum : sums) {
    sum = hn::Zero(d);
  }
  for (std::size_t k = 0; k < many; ++k) {
    const std::byte* planes = planes_of(k);
    const std::uint64_t plus = load_word(planes + at, plane - at);
    const std::uint64_t minus = load_word(planes + plane + at, plane - at);
    for (std::size_t v = 0; v < kChunk / kCountLanes; ++v) {
      // A true lane is -1.
      sums[v] = hn::Sub(sums[v], hn::VecFromMask(d, mask_of(d, plus >> (v * kCountLanes))));
      sums[v] = hn::Add(sums[v], hn::VecFromMask(d, mask_of(d, minus >> (v * kCountLanes))));
    }
  }
  for (std::size_t v = 0; v < kChunk / kCountLanes; ++v) {
    hn::StoreU(sums[v], d, counts + v * kCountLanes);
  }
}

void scale_counts(F32Vec t, const std::int8_t* counts, std::size_t n, std::byte* out) {
  const F32Tag d;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const auto count = hn::PromoteTo(I32Tag(), hn::LoadU(hn::Rebind<std::int8_t, F32Tag>(), counts + i));
    const auto value = hn::Mul(hn::ConvertTo(d, count), t);
    std::byte* to = out + i * sizeof(float);
    n - i >= kLanes ? Lane::store(value, to) : store_first<Lane>(value, to, n - i);
  }
}

// Sums are exact, so the order of additions does not matter.
void sum_equal_parts(std::span<const TwobitPart> parts, std::size_t n, std::byte* out) {
  const std::size_t plane = (n + 7) / 8;
  const auto t = hn::Set(F32Tag(), power_of_two(parts[0].exponent));
  const auto planes_of = [parts](std::size_t k) { return parts[k].planes; };
  for (std::size_t i = 0; i < n; i += kChunk) {
    std::int8_t counts[kChunk];
    count_chunk(planes_of, parts.size(), i / 8, plane, counts);
    scale_counts(t, counts, std::min(kChunk, n - i), out + i * sizeof(float));
  }
}

void sum_parts(std::span<const TwobitPart> parts, std::size_t n, std::byte* out) {
  const F32Tag d;
  const std::size_t plane = (n + 7) / 8;
  for (std::size_t i = 0; i < n; i += kChunk) {
    F32Vec sums[kChunk / kLanes];
    for (F32Vec& sum : sums) {
      sum = hn::Zero(d);
    }
    for (const TwobitPart& part : parts) {
      const std::uint64_t plus = load_word(part.planes + i / 8, plane - i / 8);
      const std::uint64_t minus = load_word(part.planes + plane + i / 8, plane - i / 8);
      const auto t = hn::Set(d, power_of_two(part.exponent));
      for (std::size_t v = 0; v < kChunk / kLanes; ++v) {
        sums[v] = hn::Add(sums[v], hn::IfThenElseZero(mask_of(d, plus >> (v * kLanes)), t));
        sums[v] = hn::Sub(sums[v], hn::IfThenElseZero(mask_of(d, minus >> (v * kLanes)), t));
      }
    }
    for (std::size_t v = 0; v < kChunk / kLanes && i + v * kLanes < n; ++v) {
      std::byte* to = out + (i + v * kLanes) * sizeof(float);
      const std::size_t here = n - i - v * kLanes;
      here >= kLanes ? Lane::store(sums[v], to) : store_first<Lane>(sums[v], to, here);
    }
  }
}

void sum_target(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out) {
  // No sum overflows, since 2^7 t is finite.
  const bool countable = !parts.empty() && parts.size() <= 127 && parts[0].exponent <= 120;
  const bool equal = countable && std::all_of(parts.begin(), parts.end(), [parts](const TwobitPart& part) {
                       return part.exponent == parts[0].exponent;
                     });
  const auto count = static_cast<std::size_t>(n);
  equal ? sum_equal_parts(parts, count, out) : sum_parts(parts, count, out);
}

void count_target(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts) {
  const auto count = static_cast<std::size_t>(n);
  const auto planes_of = [planes](std::size_t k) { return planes[k]; };
  for (std::size_t i = 0; i < count; i += kChunk) {
    std::int8_t here[kChunk];
    count_chunk(planes_of, planes.size(), i / 8, (count + 7) / 8, here);
    std::memcpy(counts + i, here, std::min(kChunk, count - i));
  }
}

void from_counts_target(int exponent, std::int64_t n, const std::byte* counts, std::byte* out) {
  const auto count = static_cast<std::size_t>(n);
  const auto t = hn::Set(F32Tag(), power_of_two(exponent));
  for (std::size_t i = 0; i < count; i += kChunk) {
    std::int8_t here[kChunk] = {};
    std::memcpy(here, counts + i, std::min(kChunk, count - i));
    scale_counts(t, here, std::min(kChunk, count - i), out + i * sizeof(float));
  }
}

using ByteTag = hn::ScalableTag<std::uint8_t>;
constexpr std::size_t kByteLanes = hn::MaxLanes(ByteTag());

void pack_target(int most, std::int64_t n, const std::byte* counts, std::byte* planes) {
  const ByteTag d;
  const auto bits = static_cast<std::size_t>(twobit_count_bits(most));
  const auto zero = hn::Set(d, static_cast<std::uint8_t>(most));
  const auto all = static_cast<std::size_t>(n);
  const std::size_t plane = (all + 7) / 8;
  for (std::size_t i = 0; i < all; i += kChunk) {
    const std::size_t count = std::min(kChunk, all - i);
    // The padding encodes as zero bits after the last count.
    std::uint8_t here[kChunk];
    std::fill_n(here, kChunk, static_cast<std::uint8_t>(-most));
    std::memcpy(here, counts + i, count);
    std::uint64_t words[8] = {};
    for (std::size_t v = 0; v < kChunk / kByteLanes; ++v) {
      const auto values = hn::Add(hn::LoadU(d, here + v * kByteLanes), zero);
      for (std::size_t k = 0; k < bits; ++k) {
        const auto bit = hn::Set(d, static_cast<std::uint8_t>(1U << k));
        words[k] |= bits_of(d, hn::TestBit(values, bit)) << (v * kByteLanes);
      }
    }
    for (std::size_t k = 0; k < bits; ++k) {
      std::memcpy(planes + k * plane + i / 8, &words[k], (count + 7) / 8);
    }
  }
}

bool unpack_target(int most, std::int64_t n, const std::byte* planes, std::byte* counts) {
  const ByteTag d;
  const auto bits = static_cast<std::size_t>(twobit_count_bits(most));
  const auto zero = hn::Set(d, static_cast<std::uint8_t>(most));
  auto largest = hn::Zero(d);
  std::uint64_t behind = 0;
  const auto all = static_cast<std::size_t>(n);
  const std::size_t plane = (all + 7) / 8;
  for (std::size_t i = 0; i < all; i += kChunk) {
    const std::size_t count = std::min(kChunk, all - i);
    std::uint64_t words[8];
    for (std::size_t k = 0; k < bits; ++k) {
      words[k] = load_word(planes + k * plane + i / 8, plane - i / 8);
      behind |= count < kChunk ? words[k] >> count : 0;
    }
    std::uint8_t here[kChunk];
    for (std::size_t v = 0; v < kChunk / kByteLanes; ++v) {
      auto values = hn::Zero(d);
      for (std::size_t k = 0; k < bits; ++k) {
        const auto bit = hn::Set(d, static_cast<std::uint8_t>(1U << k));
        values = hn::Or(values, hn::IfThenElseZero(mask_of(d, words[k] >> (v * kByteLanes)), bit));
      }
      largest = hn::Max(largest, values);
      hn::StoreU(hn::Sub(values, zero), d, here + v * kByteLanes);
    }
    std::memcpy(counts + i, here, count);
  }
  std::uint8_t lanes[kByteLanes];
  hn::StoreU(largest, d, lanes);
  return behind == 0 && *std::max_element(lanes, lanes + kByteLanes) <= 2 * most;
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(encode_target);
HWY_EXPORT(sum_target);
HWY_EXPORT(count_target);
HWY_EXPORT(from_counts_target);
HWY_EXPORT(pack_target);
HWY_EXPORT(unpack_target);

namespace {

bool is_exponent(int exponent) {
  return exponent >= kTwobitMinExponent && exponent <= kTwobitMaxExponent;
}

}  // namespace

TwobitStats twobit_encode(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes) {
  SRT_CHECK(is_exponent(exponent) && n >= 0 && arrays.valid());
  return HWY_DYNAMIC_DISPATCH(encode_target)(exponent, n, arrays, planes);
}

// This is bound by memory, so words suffice and vectors would not be faster.
bool twobit_valid(std::int64_t n, const std::byte* planes) {
  const std::size_t half = twobit_bytes(n) / 2;
  std::uint64_t both = 0;
  for (std::size_t i = 0; i < half; i += 8) {
    std::uint64_t plus = 0;
    std::uint64_t minus = 0;
    std::memcpy(&plus, planes + i, std::min<std::size_t>(8, half - i));
    std::memcpy(&minus, planes + half + i, std::min<std::size_t>(8, half - i));
    both |= plus & minus;
  }
  const auto last = static_cast<unsigned>(n % 8);
  const auto behind = last == 0 ? std::byte{0} : (planes[half - 1] | planes[2 * half - 1]) >> last;
  return both == 0 && behind == std::byte{0};
}

void twobit_sum(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out) {
  SRT_CHECK(n >= 0 && std::all_of(parts.begin(), parts.end(), [](auto& part) { return is_exponent(part.exponent); }));
  HWY_DYNAMIC_DISPATCH(sum_target)(parts, n, out);
}

void twobit_count(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts) {
  SRT_CHECK(n >= 0 && planes.size() <= 127);
  HWY_DYNAMIC_DISPATCH(count_target)(planes, n, counts);
}

void twobit_from_counts(int exponent, std::int64_t n, const std::byte* counts, std::byte* out) {
  SRT_CHECK(is_exponent(exponent) && n >= 0);
  HWY_DYNAMIC_DISPATCH(from_counts_target)(exponent, n, counts, out);
}

void twobit_pack_counts(int most, std::int64_t n, const std::byte* counts, std::byte* planes) {
  SRT_CHECK(most >= 1 && most <= kTwobitMostCounted && n >= 0);
  HWY_DYNAMIC_DISPATCH(pack_target)(most, n, counts, planes);
}

bool twobit_unpack_counts(int most, std::int64_t n, const std::byte* planes, std::byte* counts) {
  SRT_CHECK(most >= 1 && most <= kTwobitMostCounted && n >= 0);
  return HWY_DYNAMIC_DISPATCH(unpack_target)(most, n, planes, counts);
}

}  // namespace sirtaki::kernels
#endif
