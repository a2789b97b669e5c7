#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/half/half.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels::ref {
namespace {

template <class T>
struct Plain {
  using Value = T;
  static constexpr std::size_t kSize = sizeof(T);
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static void store(T value, std::byte* to) { std::memcpy(to, &value, sizeof(T)); }
};

template <float (*Widen)(std::uint16_t), std::uint16_t (*Narrow)(float)>
struct Half {
  using Value = float;
  static constexpr std::size_t kSize = 2;
  static float load(const std::byte* from) { return Widen(Plain<std::uint16_t>::load(from)); }
  static void store(float value, std::byte* to) { Plain<std::uint16_t>::store(Narrow(value), to); }
};

struct Bool {
  using Value = bool;
  static constexpr std::size_t kSize = 1;
  static bool load(const std::byte* from) { return *from != std::byte{0}; }
  static void store(bool value, std::byte* to) { *to = static_cast<std::byte>(value); }
};

template <class T>
T sum(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T>
T product(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

// b != b: a NaN in b wins; one in a stays because every comparison with it is false.
template <class T>
T smaller(T a, T b) {
  return b < a || b != b ? b : a;
}
template <class T>
T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

template <class T>
T apply(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return sum(a, b);
    case ReduceOp::kProduct:
      return product(a, b);
    case ReduceOp::kMin:
      return smaller(a, b);
    case ReduceOp::kMax:
      return larger(a, b);
  }
  return a;
}

template <class T>
T canonical(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
  } else {
    return value;
  }
}

template <class Element>
void run(ReduceOp op, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t at = i * Element::kSize;
    auto value = Element::load(sources[0] + at);
    for (const std::byte* source : sources.subspan(1)) {
      value = apply<typename Element::Value>(op, value, Element::load(source + at));
    }
    Element::store(canonical(value), out + at);
  }
}

}  // namespace

void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  SRT_CHECK(!sources.empty() && n >= 0);
  if (n == 0) {
    return;
  }
  if (sources.size() == 1) {
    std::memmove(out, sources[0], static_cast<std::size_t>(n) * dtype_size(dtype));
    return;
  }
  switch (dtype) {
    case DType::kU8:
      return run<Plain<std::uint8_t>>(op, sources, out, n);
    case DType::kI8:
      return run<Plain<std::int8_t>>(op, sources, out, n);
    case DType::kU16:
      return run<Plain<std::uint16_t>>(op, sources, out, n);
    case DType::kI16:
      return run<Plain<std::int16_t>>(op, sources, out, n);
    case DType::kI32:
      return run<Plain<std::int32_t>>(op, sources, out, n);
    case DType::kI64:
      return run<Plain<std::int64_t>>(op, sources, out, n);
    case DType::kF16:
      return run<Half<f16_to_f32, f32_to_f16>>(op, sources, out, n);
    case DType::kBF16:
      return run<Half<bf16_to_f32, f32_to_bf16>>(op, sources, out, n);
    case DType::kF32:
      return run<Plain<float>>(op, sources, out, n);
    case DType::kF64:
      return run<Plain<double>>(op, sources, out, n);
    case DType::kBool:
      return run<Bool>(op, sources, out, n);
  }
}

}  // namespace sirtaki::kernels::ref
