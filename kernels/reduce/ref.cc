#include <cstring>
#include <type_traits>

#include "kernels/half/elements.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels::ref {
namespace {

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
    case ReduceOp::kAdasum:
      break;
  }
  return a;
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
      return run<F16>(op, sources, out, n);
    case DType::kBF16:
      return run<BF16>(op, sources, out, n);
    case DType::kF32:
      return run<Plain<float>>(op, sources, out, n);
    case DType::kF64:
      return run<Plain<double>>(op, sources, out, n);
    case DType::kBool:
      return run<Bool>(op, sources, out, n);
  }
}

}  // namespace sirtaki::kernels::ref
