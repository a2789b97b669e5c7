// The arithmetic of reductions on two elements.
//
// Shared by the reference and the CUDA kernel, so that both compute the same bits. Threads: pure functions.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/host_device.h"
#include "runtime/base/tensor.h"

namespace sirtaki::kernels::ref {

template <class T>
SIRTAKI_HOST_DEVICE T sum(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T>
SIRTAKI_HOST_DEVICE T product(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

// b != b selects a NaN in b; a NaN in a stays because every comparison with it is false.
template <class T>
SIRTAKI_HOST_DEVICE T smaller(T a, T b) {
  return b < a || b != b ? b : a;
}
template <class T>
SIRTAKI_HOST_DEVICE T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

template <class T>
SIRTAKI_HOST_DEVICE T combined(ReduceOp op, T a, T b) {
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

// Returns the exact quotient, rounded once, for floating types; truncates towards 0 for integers. Not defined for bool.
template <class T>
SIRTAKI_HOST_DEVICE T divided(T value, std::int64_t count) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value) / count);
  } else {
    return value / static_cast<T>(count);
  }
}

}  // namespace sirtaki::kernels::ref
