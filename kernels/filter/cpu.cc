#include <algorithm>
#include <cstring>

#include "kernels/filter/filter.h"
#include "kernels/half/sent.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/filter/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_RVV || (HWY_TARGET & (HWY_SVE | HWY_SVE2))

// Targets with one lane use the reference; so do those with vectors of unknown length, which cannot be elements of
// arrays.
void norms_target(const FilterShape& shape, const Feedback& arrays, std::byte* norms) {
  ref::filter_norms(shape, arrays, norms);
}
bool gather_target(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent) {
  return ref::filter_gather(shape, chosen, how, values, sent);
}

#else

using Lane = PlainLane<float>;
using Float = ref::Plain<float>;
using Id = ref::Plain<std::uint16_t>;
constexpr std::size_t kLanes = hn::MaxLanes(F32Tag());
constexpr std::size_t kSums = 16;
constexpr std::size_t kSumVectors = kSums / kLanes;
constexpr std::size_t kBlock = 1024;

// Adds up to 1024 elements from `first` on: writes a = gradient + residual and returns `sum` plus their magnitudes.
template <bool kFeedback>
double add_block(const Feedback& arrays, std::size_t first, std::size_t count, double sum) {
  const F32Tag d;
  F32Vec sums[kSumVectors];
  for (F32Vec& lanes : sums) {
    lanes = hn::Zero(d);
  }
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t at = (first + i) * sizeof(float);
    auto a = load_up_to<Lane>(arrays.gradient + at, count - i);
    if constexpr (kFeedback) {
      a = canonical(d, hn::Add(a, load_up_to<Lane>(arrays.residual + at, count - i)));
      store_up_to<Lane>(a, arrays.left + at, count - i);
    }
    F32Vec& lanes = sums[i / kLanes % kSumVectors];
    lanes = hn::Add(lanes, hn::Abs(a));
  }
  HWY_ALIGN float all[kSums];
  for (std::size_t v = 0; v < kSumVectors; ++v) {
    hn::Store(sums[v], d, all + v * kLanes);
  }
  for (const float lane : all) {
    sum += static_cast<double>(lane);
  }
  return sum;
}

template <bool kFeedback>
void norms_as(const FilterShape& shape, const Feedback& arrays, std::byte* norms) {
  const auto size = static_cast<std::size_t>(shape.size);
  for (std::size_t f = 0; f < static_cast<std::size_t>(shape.filters); ++f) {
    double sum = 0;
    for (std::size_t i = 0; i < size; i += kBlock) {
      sum = add_block<kFeedback>(arrays, f * size + i, std::min(kBlock, size - i), sum);
    }
    Float::store(ref::canonical(static_cast<float>(sum / static_cast<double>(size))), norms + f * sizeof(float));
  }
}

void norms_target(const FilterShape& shape, const Feedback& arrays, std::byte* norms) {
  arrays.residual == nullptr ? norms_as<false>(shape, arrays, norms) : norms_as<true>(shape, arrays, norms);
}

template <class Element>
struct LaneOf;
template <>
struct LaneOf<ref::Plain<float> > {
  using Type = Lane;
};
template <>
struct LaneOf<ref::F16> {
  using Type = F16Lane;
};
template <>
struct LaneOf<ref::BF16> {
  using Type = BF16Lane;
};

// Sends a vector by the rules of half/sent.h: stores it and returns the residual; clears the lanes of `good` that are
// not finite.
template <class Element>
F32Vec send_lanes(F32Vec a, std::size_t count, std::byte* to, hn::Mask<F32Tag>& good) {
  using ValueLane = typename LaneOf<Element>::Type;
  const F32Tag d;
  HWY_ALIGN std::byte buffer[kLaneBytes];
  ValueLane::store(a, buffer);
  auto sent = ValueLane::load(buffer);
  const auto saturates = hn::And(hn::IsInf(sent), hn::Lt(hn::Abs(a), hn::Set(d, SentRange<Element>::kExactBelow)));
  const auto largest = hn::CopySignToAbs(hn::Set(d, SentRange<Element>::kLargest), a);
  ValueLane::store(hn::IfThenElse(saturates, largest, a), buffer);
  sent = ValueLane::load(buffer);
  std::memcpy(to, buffer, count * Element::kSize);
  const auto finite = hn::IsFinite(sent);
  good = hn::And(good, finite);
  return hn::IfThenElseZero(finite, hn::Sub(a, sent));
}

template <class Element>
bool gather_as(const FilterShape& shape, const FilterIds& chosen, bool take_out, std::byte* values, std::byte* sent) {
  const F32Tag d;
  const auto size = static_cast<std::size_t>(shape.size);
  auto good = hn::Eq(hn::Zero(d), hn::Zero(d));
  for (std::size_t c = 0; c < static_cast<std::size_t>(chosen.count); ++c) {
    std::byte* const row = values + Id::load(chosen.ids + c * Id::kSize) * size * sizeof(float);
    std::byte* const to = sent + c * size * Element::kSize;
    for (std::size_t i = 0; i < size; i += kLanes) {
      const std::size_t count = std::min(kLanes, size - i);
      std::byte* const at = row + i * sizeof(float);
      const auto left = send_lanes<Element>(load_up_to<Lane>(at, count), count, to + i * Element::kSize, good);
      if (take_out) {
        count == kLanes ? Lane::store(left, at) : store_first<Lane>(left, at, count);
      }
    }
  }
  return hn::AllTrue(d, good);
}

bool gather_target(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent) {
  switch (how.value) {
    case DType::kF16:
      return gather_as<ref::F16>(shape, chosen, how.take_out, values, sent);
    case DType::kBF16:
      return gather_as<ref::BF16>(shape, chosen, how.take_out, values, sent);
    default:
      return gather_as<ref::Plain<float> >(shape, chosen, how.take_out, values, sent);
  }
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(norms_target);
HWY_EXPORT(gather_target);

void filter_norms(const FilterShape& shape, const Feedback& arrays, std::byte* norms) {
  SRT_CHECK(shape.filters >= 0 && shape.filters <= 65536 && shape.size >= 1);
  SRT_CHECK(arrays.valid());
  HWY_DYNAMIC_DISPATCH(norms_target)(shape, arrays, norms);
}

bool filter_gather(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent) {
  SRT_CHECK(how.value == DType::kF32 || how.value == DType::kF16 || how.value == DType::kBF16);
  SRT_CHECK(shape.size >= 1 && chosen.count >= 0 && chosen.count <= shape.filters);
  return HWY_DYNAMIC_DISPATCH(gather_target)(shape, chosen, how, values, sent);
}

}  // namespace sirtaki::kernels
#endif
