#include <cmath>

#include "kernels/half/elements.h"
#include "kernels/reduce/arithmetic.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels::ref {
namespace {

// Truncates any double: the conversion of a double out of range is undefined behaviour in C++.
template <class T>
T truncate(double value) {
  // Both bounds are powers of two, exact in a double. The upper one is the first number out of range.
  constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double kBeyond = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  if (std::isnan(value)) {
    return 0;
  }
  if (value >= kBeyond) {
    return std::numeric_limits<T>::max();
  }
  return value <= kLow ? std::numeric_limits<T>::min() : static_cast<T>(value);
}

template <class Element>
void multiply(std::byte* data, std::size_t n, double factor) {
  using Value = typename Element::Value;
  for (std::size_t i = 0; i < n; ++i) {
    std::byte* at = data + i * Element::kSize;
    const Value value = Element::load(at);
    if constexpr (std::is_same_v<Value, bool>) {
      Element::store(truncate<std::int8_t>((value ? 1.0 : 0.0) * factor) != 0, at);
    } else if constexpr (std::is_integral_v<Value>) {
      Element::store(truncate<Value>(static_cast<double>(value) * factor), at);
    } else {
      Element::store(canonical(value * static_cast<Value>(factor)), at);
    }
  }
}

template <class Element>
void divide(std::byte* data, std::size_t n, std::int64_t count) {
  using Value = typename Element::Value;
  for (std::size_t i = 0; i < n; ++i) {
    std::byte* at = data + i * Element::kSize;
    Element::store(canonical(divided<Value>(Element::load(at), count)), at);
  }
}

}  // namespace

void scale(DType dtype, std::byte* data, std::int64_t n, double factor) {
  SRT_CHECK(n >= 0);
  const auto count = static_cast<std::size_t>(n);
  switch (dtype) {
    case DType::kU8:
      return multiply<Plain<std::uint8_t>>(data, count, factor);
    case DType::kI8:
      return multiply<Plain<std::int8_t>>(data, count, factor);
    case DType::kU16:
      return multiply<Plain<std::uint16_t>>(data, count, factor);
    case DType::kI16:
      return multiply<Plain<std::int16_t>>(data, count, factor);
    case DType::kI32:
      return multiply<Plain<std::int32_t>>(data, count, factor);
    case DType::kI64:
      return multiply<Plain<std::int64_t>>(data, count, factor);
    case DType::kF16:
      return multiply<F16>(data, count, factor);
    case DType::kBF16:
      return multiply<BF16>(data, count, factor);
    case DType::kF32:
      return multiply<Plain<float>>(data, count, factor);
    case DType::kF64:
      return multiply<Plain<double>>(data, count, factor);
    case DType::kBool:
      return multiply<Bool>(data, count, factor);
  }
}

void divide_by(DType dtype, std::byte* data, std::int64_t n, std::int64_t count) {
  SRT_CHECK(n >= 0 && count >= 1 && dtype != DType::kBool);
  const auto size = static_cast<std::size_t>(n);
  switch (dtype) {
    case DType::kU8:
      return divide<Plain<std::uint8_t>>(data, size, count);
    case DType::kI8:
      return divide<Plain<std::int8_t>>(data, size, count);
    case DType::kU16:
      return divide<Plain<std::uint16_t>>(data, size, count);
    case DType::kI16:
      return divide<Plain<std::int16_t>>(data, size, count);
    case DType::kI32:
      return divide<Plain<std::int32_t>>(data, size, count);
    case DType::kI64:
      return divide<Plain<std::int64_t>>(data, size, count);
    case DType::kF16:
      return divide<F16>(data, size, count);
    case DType::kBF16:
      return divide<BF16>(data, size, count);
    case DType::kF32:
      return divide<Plain<float>>(data, size, count);
    case DType::kF64:
      return divide<Plain<double>>(data, size, count);
    case DType::kBool:
      return;
  }
}

}  // namespace sirtaki::kernels::ref
