#include <algorithm>
#include <bit>

#include "kernels/half/elements.h"
#include "kernels/scaled_cast/code.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scaled_cast/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
bool encode_target(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  return ref::scaled_encode(how, n, arrays, payload);
}
void sum_target(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  ref::scaled_sum(how, n, payloads, out);
}

#else

using Lane = PlainLane<float>;

// Codes as numbers in lanes of 32 bits; the same formats as in code.h, bit for bit.
template <class Code>
struct Vector;

template <>
struct Vector<Int8> {
  using Stored = std::int8_t;
  static I32Vec encode(F32Vec x) { return hn::NearestInt(x); }
  static F32Vec decode(I32Vec code) { return hn::ConvertTo(F32Tag(), code); }
};

template <>
struct Vector<Int4> {
  using Stored = std::uint8_t;
  static I32Vec encode(F32Vec x) { return hn::NearestInt(x); }
  static F32Vec decode(I32Vec code) { return hn::ConvertTo(F32Tag(), code); }
};

template <int kMantissa, int kMinExponent, int kMaxExponent>
struct Vector<SmallFloat<kMantissa, kMinExponent, kMaxExponent> > {
  using Stored = std::uint8_t;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int kBias = 127 - (1 - kMinExponent);  // the exponent field of a float32 minus that of the code

  static I32Vec encode(F32Vec x) {
    const F32Tag d;
    const I32Tag di;
    const auto bits = hn::BitCast(di, hn::Abs(x));
    const auto sign = hn::And(hn::BitCast(di, hn::ShiftRight<24>(hn::BitCast(U32Tag(), x))), hn::Set(di, 0x80));
    const auto odd = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(di, 1));
    const auto rounded = hn::Add(hn::Add(bits, odd), hn::Set(di, (1 << (kShift - 1)) - 1 - (kBias << 23)));
    const auto normal = hn::ShiftRight<kShift>(rounded);
    // Subnormal codes: the shift moves x to a binade where float32 has steps of their size, so this addition rounds.
    const float shift = power_of_two(kMinExponent - kMantissa + 23);
    const auto shifted = hn::BitCast(di, hn::Add(hn::Abs(x), hn::Set(d, shift)));
    const auto small = hn::Sub(shifted, hn::Set(di, std::bit_cast<std::int32_t>(shift)));
    const auto is_small = hn::Gt(hn::Set(di, (kMinExponent + 127) << 23), bits);
    return hn::Or(sign, hn::IfThenElse(is_small, small, normal));
  }
  static F32Vec decode(I32Vec code) {
    const F32Tag d;
    const I32Tag di;
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
    const auto magnitude = hn::ShiftLeft<kShift>(hn::And(code, hn::Set(di, 0x7F)));
    // The bits form a float32 whose exponent is too small by the bias, subnormal if the code is.
    return hn::Mul(hn::BitCast(d, hn::Or(sign, magnitude)), hn::Set(d, power_of_two(kBias)));
  }
};

template <class Code>
using Stored = typename Vector<Code>::Stored;
template <class Code>
using StoredTag = hn::Rebind<Stored<Code>, F32Tag>;

// Pairs of lanes of 32 bits, the first of a pair in the low bits.
using PairTag = hn::Repartition<std::uint64_t, F32Tag>;
using PairBytesTag = hn::Rebind<std::uint8_t, PairTag>;

template <class Code>
void store_all(I32Vec codes, Stored<Code>* to) {
  if constexpr (Code::kBits == 8) {
    hn::StoreU(hn::DemoteTo(StoredTag<Code>(), codes), StoredTag<Code>(), to);
  } else {
    const PairTag d;
    const auto pairs = hn::BitCast(d, codes);
    const auto first = hn::And(pairs, hn::Set(d, 0x0F));
    const auto second = hn::And(hn::ShiftRight<28>(pairs), hn::Set(d, 0xF0));
    hn::StoreU(hn::TruncateTo(PairBytesTag(), hn::Or(first, second)), PairBytesTag(), to);
  }
}

template <class Code>
I32Vec load_all(const Stored<Code>* from) {
  if constexpr (Code::kBits == 8) {
    return hn::PromoteTo(I32Tag(), hn::LoadU(StoredTag<Code>(), from));
  } else {
    // Both codes move to the highest bits of their lanes, from where the shift extends their signs.
    const hn::Rebind<std::uint32_t, PairTag> narrow;
    const auto pairs = hn::PromoteTo(PairTag(), hn::PromoteTo(narrow, hn::LoadU(PairBytesTag(), from)));
    const auto highest = hn::Or(hn::ShiftLeft<28>(pairs), hn::ShiftLeft<56>(pairs));
    return hn::ShiftRight<28>(hn::BitCast(I32Tag(), highest));
  }
}

template <class Code>
void store_codes(I32Vec codes, std::byte* to, std::size_t count) {
  if (count >= hn::Lanes(F32Tag())) {
    store_all<Code>(codes, reinterpret_cast<Stored<Code>*>(to));
  } else {
    Stored<Code> buffer[HWY_MAX_BYTES];
    store_all<Code>(codes, buffer);
    std::memcpy(to, buffer, code_bytes<Code>(count));
  }
}

template <class Code>
I32Vec load_codes(const std::byte* from, std::size_t count) {
  if (count >= hn::Lanes(F32Tag())) {
    return load_all<Code>(reinterpret_cast<const Stored<Code>*>(from));
  }
  Stored<Code> buffer[HWY_MAX_BYTES] = {};
  std::memcpy(buffer, from, code_bytes<Code>(count));
  return load_all<Code>(buffer);
}

// Writes the sums if there is feedback. Returns the largest magnitude, as bits.
template <bool kFeedback>
std::uint32_t accumulate(const Feedback& arrays, std::size_t first, std::size_t end) {
  const F32Tag d;
  auto largest = hn::Zero(I32Tag());
  for (std::size_t i = first; i < end; i += hn::Lanes(d)) {
    const std::size_t at = i * sizeof(float);
    auto a = load_up_to<Lane>(arrays.gradient + at, end - i);
    if constexpr (kFeedback) {
      a = canonical(d, hn::Add(a, load_up_to<Lane>(arrays.residual + at, end - i)));
      store_up_to<Lane>(a, arrays.left + at, end - i);
    }
    largest = hn::Max(largest, magnitude_bits(a));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32Tag(), largest)));
}

// Encodes elements `first` to `end`; `codes`: of this block.
template <class Code, bool kFeedback>
void encode_block(std::int8_t scale, std::size_t first, std::size_t end, const Feedback& arrays, std::byte* codes) {
  if (scale == kNotFinite) {
    std::memset(codes, 0, code_bytes<Code>(end - first));
    return;
  }
  const F32Tag d;
  const std::byte* const values = kFeedback ? arrays.left : arrays.gradient;
  const auto up = hn::Set(d, power_of_two(-scale));
  const auto down = hn::Set(d, power_of_two(scale));
  for (std::size_t i = first; i < end; i += hn::Lanes(d)) {
    const auto a = load_up_to<Lane>(values + i * sizeof(float), end - i);
    const auto code = Vector<Code>::encode(hn::Mul(a, up));
    store_codes<Code>(code, codes + code_bytes<Code>(i - first), end - i);
    if constexpr (kFeedback) {
      store_up_to<Lane>(hn::Sub(a, hn::Mul(Vector<Code>::decode(code), down)), arrays.left + i * sizeof(float),
                        end - i);
    }
  }
}

template <class Code, bool kFeedback>
bool encode_all(const ScaledCast& how, std::size_t n, const Feedback& arrays, std::byte* payload) {
  const auto block = static_cast<std::size_t>(how.block);
  std::byte* const codes = payload + scaled_blocks(how, n);
  bool finite = true;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t end = std::min(first + block, n);
    const std::int8_t scale = scale_of<Code>(accumulate<kFeedback>(arrays, first, end));
    payload[first / block] = static_cast<std::byte>(scale);
    encode_block<Code, kFeedback>(scale, first, end, arrays, codes + first / block * code_bytes<Code>(block));
    finite = finite && scale != kNotFinite;
  }
  return finite;
}

bool encode_target(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  bool finite = true;
  with_code_type(how.code, [&]<class Code>() {
    const auto count = static_cast<std::size_t>(n);
    finite = arrays.residual == nullptr ? encode_all<Code, false>(how, count, arrays, payload)
                                        : encode_all<Code, true>(how, count, arrays, payload);
  });
  return finite;
}

// Adds the decoded block to `out`; `first`: overwrites `out` instead.
template <class Code>
void add_block(std::int8_t scale, const std::byte* codes, std::size_t n, bool first, std::byte* out) {
  const F32Tag d;
  const auto down =
      scale == kNotFinite ? hn::BitCast(d, hn::Set(U32Tag(), 0x7FC00000U)) : hn::Set(d, power_of_two(scale));
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    std::byte* const to = out + i * sizeof(float);
    const auto before = first ? hn::Zero(d) : load_up_to<Lane>(to, n - i);
    const auto value = hn::Mul(Vector<Code>::decode(load_codes<Code>(codes + code_bytes<Code>(i), n - i)), down);
    store_up_to<Lane>(canonical(d, hn::Add(before, value)), to, n - i);
  }
}

// Adds block by block, so that the sums of a block stay in the nearest cache.
void sum_target(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  const auto count = static_cast<std::size_t>(n);
  const auto block = static_cast<std::size_t>(how.block);
  const std::size_t blocks = scaled_blocks(how, count);
  if (payloads.empty()) {
    std::memset(out, 0, count * sizeof(float));
  }
  with_code_type(how.code, [&]<class Code>() {
    for (std::size_t first = 0; first < count; first += block) {
      const std::size_t size = std::min(block, count - first);
      for (std::size_t p = 0; p < payloads.size(); ++p) {
        const auto scale = std::to_integer<std::int8_t>(payloads[p][first / block]);
        const std::byte* const codes = payloads[p] + blocks + first / block * code_bytes<Code>(block);
        add_block<Code>(scale, codes, size, p == 0, out + first * sizeof(float));
      }
    }
  });
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(encode_target);
HWY_EXPORT(sum_target);

bool scaled_encode(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  SRT_CHECK(n >= 0 && how.block >= 1 && how.block <= 65536);
  SRT_CHECK(arrays.valid());
  return HWY_DYNAMIC_DISPATCH(encode_target)(how, n, arrays, payload);
}

void scaled_sum(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  SRT_CHECK(n >= 0 && how.block >= 1 && how.block <= 65536);
  HWY_DYNAMIC_DISPATCH(sum_target)(how, n, payloads, out);
}

}  // namespace sirtaki::kernels
#endif
