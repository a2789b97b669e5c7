// Lane policies: load elements of one dtype into vectors and store them, for the SIMD target being compiled. Halves are
// computed in float32 and rounded once, when stored. half.h defines the conversions.
//
// Included by the cpu.cc of a kernel, which foreach_target of Highway compiles once per target; hence no #pragma once.
// Empty for one-lane targets, which run the reference.
// Loads and stores take any alignment.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// Highway includes a file once per target: the macro toggles with the target.
#if defined(SIRTAKI_KERNELS_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIRTAKI_KERNELS_HALF_INL_H_
#undef SIRTAKI_KERNELS_HALF_INL_H_
#else
#define SIRTAKI_KERNELS_HALF_INL_H_
#endif

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using U32Tag = hn::Rebind<std::uint32_t, F32Tag>;
using I32Tag = hn::RebindToSigned<F32Tag>;
using U16HalfTag = hn::Rebind<std::uint16_t, F32Tag>;
using F32Vec = hn::Vec<F32Tag>;
using U32Vec = hn::Vec<U32Tag>;
using I32Vec = hn::Vec<I32Tag>;
using U16HalfVec = hn::Vec<U16HalfTag>;

// Narrows each lane to 16 bits, which must fit. Goes through int32 because SSSE3 narrows signed numbers only.
inline U16HalfVec narrow(U32Vec v) {
  const hn::Rebind<std::int32_t, F32Tag> di32;
  const hn::Rebind<std::int16_t, F32Tag> di16;
  // Signed narrowing saturates, so bit 15 is spread as a sign first.
  const auto spread = hn::ShiftRight<16>(hn::BitCast(di32, hn::ShiftLeft<16>(v)));
  return hn::BitCast(U16HalfTag(), hn::DemoteTo(di16, spread));
}

// The target has conversion instructions with the results that half.h defines.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
inline F32Vec f16_to_f32(U16HalfVec half) {
  return hn::PromoteTo(F32Tag(), hn::BitCast(hn::Rebind<hwy::float16_t, F32Tag>(), half));
}
inline U16HalfVec f32_to_f16(F32Vec value) {
  return hn::BitCast(U16HalfTag(), hn::DemoteTo(hn::Rebind<hwy::float16_t, F32Tag>(), value));
}
#else
inline F32Vec f16_to_f32(U16HalfVec half) {
  const F32Tag df;
  const U32Tag du;
  const auto bits = hn::PromoteTo(du, half);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000U)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFU)));
  const auto normal = hn::Add(magnitude, hn::Set(du, 112U << 23));
  // Infinity and NaN have the largest exponent; a NaN becomes quiet.
  const auto quiet = hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(du, 0x0F800000U)), hn::Set(du, 0x400000U));
  const auto special = hn::Or(hn::Add(magnitude, hn::Set(du, 224U << 23)), quiet);
  // A subnormal is read as the mantissa of 2^-14; subtracting 2^-14 is exact.
  const auto shifted = hn::BitCast(df, hn::Add(magnitude, hn::Set(du, 113U << 23)));
  const auto small = hn::BitCast(du, hn::Sub(shifted, hn::BitCast(df, hn::Set(du, 113U << 23))));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x00800000U)), small, normal);
  const auto all = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x0F7FFFFFU)), special, finite);
  return hn::BitCast(df, hn::Or(sign, all));
}
inline U16HalfVec f32_to_f16(F32Vec value) {
  const F32Tag df;
  const U32Tag du;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  const auto bias = hn::Set(du, 0xFFFU - (112U << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, bias), odd));
  const auto shifted = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5F));
  const auto small = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3F000000U));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FFU));
  const auto nan = hn::Or(hn::Set(du, 0x7E00U), payload);
  auto all = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000U)), small, normal);
  all = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477FFFFFU)), hn::Set(du, 0x7C00U), all);
  all = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000U)), nan, all);
  return narrow(hn::Or(sign, all));
}
#endif

inline F32Vec bf16_to_f32(U16HalfVec half) {
  return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(hn::PromoteTo(U32Tag(), half)));
}
inline U16HalfVec f32_to_bf16(F32Vec value) {
  const U32Tag du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40U));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  return narrow(hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000U)), nan, rounded));
}

// A lane policy: Tag is the type of the lanes, kSize the bytes of an element in memory.
template <class T>
struct PlainLane {
  using Tag = hn::ScalableTag<T>;
  static constexpr std::size_t kSize = sizeof(T);
  static hn::Vec<Tag> load(const std::byte* from) { return hn::LoadU(Tag(), reinterpret_cast<const T*>(from)); }
  static void store(hn::Vec<Tag> v, std::byte* to) { hn::StoreU(v, Tag(), reinterpret_cast<T*>(to)); }
};

struct F16Lane {
  using Tag = F32Tag;
  static constexpr std::size_t kSize = 2;
  static F32Vec load(const std::byte* from) {
    return f16_to_f32(hn::LoadU(U16HalfTag(), reinterpret_cast<const std::uint16_t*>(from)));
  }
  static void store(F32Vec v, std::byte* to) {
    hn::StoreU(f32_to_f16(v), U16HalfTag(), reinterpret_cast<std::uint16_t*>(to));
  }
};

struct BF16Lane {
  using Tag = F32Tag;
  static constexpr std::size_t kSize = 2;
  static F32Vec load(const std::byte* from) {
    return bf16_to_f32(hn::LoadU(U16HalfTag(), reinterpret_cast<const std::uint16_t*>(from)));
  }
  static void store(F32Vec v, std::byte* to) {
    hn::StoreU(f32_to_bf16(v), U16HalfTag(), reinterpret_cast<std::uint16_t*>(to));
  }
};

template <class Lane>
std::size_t lanes() {
  return hn::Lanes(typename Lane::Tag());
}

// The most bytes that a lane policy loads or stores: a vector of float32 is two vectors of float64 in memory.
constexpr std::size_t kLaneBytes = 2 * HWY_MAX_BYTES;

// Loads the first `count` elements, fewer than a vector; the other lanes are zero.
template <class Lane>
hn::Vec<typename Lane::Tag> load_first(const std::byte* from, std::size_t count) {
  HWY_ALIGN std::byte buffer[kLaneBytes] = {};
  std::memcpy(buffer, from, count * Lane::kSize);
  return Lane::load(buffer);
}

template <class Lane>
void store_first(hn::Vec<typename Lane::Tag> v, std::byte* to, std::size_t count) {
  HWY_ALIGN std::byte buffer[kLaneBytes];
  Lane::store(v, buffer);
  std::memcpy(to, buffer, count * Lane::kSize);
}

// Loads a full vector if `count` allows, else the first `count` elements, with zeros in the other lanes.
template <class Lane>
hn::Vec<typename Lane::Tag> load_up_to(const std::byte* from, std::size_t count) {
  return count >= lanes<Lane>() ? Lane::load(from) : load_first<Lane>(from, count);
}
template <class Lane>
void store_up_to(hn::Vec<typename Lane::Tag> v, std::byte* to, std::size_t count) {
  count >= lanes<Lane>() ? Lane::store(v, to) : store_first<Lane>(v, to, count);
}

// The vector counterpart of ref::magnitude_bits(). The 31 bits also compare correctly as signed numbers, which every
// target supports.
inline I32Vec magnitude_bits(F32Vec v) {
  return hn::BitCast(I32Tag(), hn::Abs(v));
}

// Returns the canonical NaN for any NaN, so that the result does not depend on operands and target; other numbers
// unchanged.
template <class D, class V>
V canonical(D d, V v) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    const hn::RebindToUnsigned<D> du;
    constexpr auto kQuiet = sizeof(hn::TFromD<D>) == 4 ? 0x7FC00000U : 0x7FF8000000000000U;
    const auto nan = hn::BitCast(d, hn::Set(du, static_cast<hn::TFromD<decltype(du)>>(kQuiet)));
    return hn::IfThenElse(hn::IsNaN(v), nan, v);
  } else {
    return v;
  }
}

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
