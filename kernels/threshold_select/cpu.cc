#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/kth_magnitude/kth_magnitude.h"
#include "kernels/threshold_select/threshold_select.h"
#include "kernels/threshold_select/writer.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/threshold_select/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
Selected select_target(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  return ref::threshold_select(how, n, arrays, payload);
}

#else

using Lane = PlainLane<float>;
using Float = ref::Plain<float>;

// Elements of a piece, whose values stay in the nearest cache between the passes over them.
constexpr std::size_t kPiece = 1024;

// All n elements. `values` is `left` with error feedback, once accumulate() has written there, else the gradient.
struct Elements {
  const Feedback& arrays;
  const std::byte* values;
  std::size_t size;

  float element(std::size_t i) const { return ref::canonical(Float::load(values + i * sizeof(float))); }
  std::int32_t key(std::size_t i) const { return static_cast<std::int32_t>(ref::magnitude_bits(element(i))); }
  void put(std::size_t i, SparseWriter& writer) const {
    const float left = writer.put(i, element(i));
    if (arrays.left != nullptr) {
      Float::store(left, arrays.left + i * sizeof(float));
    }
  }

  // Adds without a branch on the sums, which would wait for memory when mispredicted.
  void accumulate(std::size_t first, std::size_t count) const {
    if (arrays.residual == nullptr) {
      return;
    }
    const F32Tag d;
    const std::size_t end = first + count;
    std::size_t i = first;
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
      const std::size_t at = i * sizeof(float);
      const auto a = hn::Add(Lane::load(arrays.gradient + at), Lane::load(arrays.residual + at));
      Lane::store(canonical(d, a), arrays.left + at);
    }
    if (i < end) {
      const std::size_t at = i * sizeof(float);
      const auto gradient = load_first<Lane>(arrays.gradient + at, end - i);
      const auto residual = load_first<Lane>(arrays.residual + at, end - i);
      store_first<Lane>(canonical(d, hn::Add(gradient, residual)), arrays.left + at, end - i);
    }
  }
};

// Ascending positions in a piece of the elements whose key is above a number.
class Places {
 public:
  Places() { std::iota(lanes_, lanes_ + kLanes, 0); }

  void find(const Elements& elements, std::size_t first, std::size_t count, std::int32_t above) {
    const I32Tag d;
    const auto lanes = hn::LoadU(d, lanes_);
    const auto least = hn::Set(d, above);
    std::size_t found = 0;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const std::byte* from = elements.values + (first + i) * sizeof(float);
      const auto a = load_up_to<Lane>(from, count - i);
      const auto keys = magnitude_bits(canonical(F32Tag(), a));
      // Stores without a branch on the mask, which would be mispredicted too often. The zeros after the last element
      // are above no threshold.
      const auto mask = hn::Gt(keys, least);
      const auto here = hn::Add(lanes, hn::Set(d, static_cast<std::int32_t>(i)));
      hn::StoreU(hn::Compress(here, mask), d, places_ + found);
      found += hn::CountTrue(d, mask);
    }
    count_ = found;
  }
  std::size_t count() const { return count_; }
  std::size_t operator[](std::size_t i) const { return static_cast<std::size_t>(places_[i]); }

 private:
  static constexpr std::size_t kLanes = HWY_MAX_BYTES / sizeof(std::int32_t);
  std::int32_t lanes_[kLanes];  // 0, 1, 2, ...
  std::int32_t places_[kPiece + kLanes];
  std::size_t count_ = 0;
};

// Calls body(first, count) for every piece.
template <class Body>
void for_each_piece(std::size_t n, Body body) {
  for (std::size_t first = 0; first < n; first += kPiece) {
    body(first, std::min(kPiece, n - first));
  }
}

// Selects the elements with a larger key, and a number of those with this key.
struct Limit {
  std::int32_t key;
  std::int64_t equal;
};

void put_all(const Elements& elements, Limit limit, SparseWriter& writer) {
  Places places;
  for_each_piece(elements.size, [&](std::size_t first, std::size_t count) {
    places.find(elements, first, count, limit.key - 1);
    for (std::size_t p = 0; p < places.count(); ++p) {
      const std::size_t i = first + places[p];
      const bool is_equal = elements.key(i) == limit.key;
      if (!is_equal || limit.equal > 0) {
        limit.equal -= is_equal ? 1 : 0;
        elements.put(i, writer);
      }
    }
  });
}

// Restores `left` from the payload: a value and its residual add up exactly.
void take_back(const ThresholdSelect& how, const Elements& elements, const SparseWriter& writer) {
  if (elements.arrays.left == nullptr) {
    return;
  }
  with_value_type(how.value, [&]<class Value>() {
    writer.for_each(elements.size, [&](std::size_t element, const std::byte* value) {
      std::byte* at = elements.arrays.left + element * sizeof(float);
      Float::store(Float::load(at) + Value::load(value), at);
    });
  });
}

Selected select_target(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  const auto capacity = static_cast<std::size_t>(std::min(how.capacity, n));
  const bool feedback = arrays.residual != nullptr;
  const Elements elements{arrays, feedback ? arrays.left : arrays.gradient, static_cast<std::size_t>(n)};
  const auto threshold = std::bit_cast<std::int32_t>(how.threshold);
  // Entries are written in the first pass if it can be undone; it cannot once a float16 has overflowed.
  const bool at_once = how.value != DType::kF16;
  SparseWriter writer(how.value, n, capacity, payload);
  Places places;
  std::size_t wanted = 0;
  for_each_piece(elements.size, [&](std::size_t first, std::size_t count) {
    elements.accumulate(first, count);
    places.find(elements, first, count, threshold - 1);
    wanted += places.count();
    for (std::size_t p = 0; at_once && wanted <= capacity && p < places.count(); ++p) {
      elements.put(first + places[p], writer);
    }
  });
  if (wanted > capacity) {
    take_back(how, elements, writer);
    writer = SparseWriter(how.value, n, capacity, payload);
    if (capacity > 0) {
      const KthMagnitude last = kth_magnitude(n, how.capacity, elements.values);
      put_all(elements, {static_cast<std::int32_t>(last.key), how.capacity - last.above}, writer);
    }
  } else if (!at_once) {
    put_all(elements, {threshold, n}, writer);
  }
  writer.finish();
  return {static_cast<std::int64_t>(writer.entries()), static_cast<std::int64_t>(wanted), writer.finite()};
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(select_target);

Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  SRT_CHECK(n >= 0 && arrays.valid());
  SRT_CHECK(how.threshold > 0 && how.capacity >= 0);
  return HWY_DYNAMIC_DISPATCH(select_target)(how, n, arrays, payload);
}

}  // namespace sirtaki::kernels
#endif
