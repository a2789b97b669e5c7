// float32 arrays that gradients and residuals look like, for the tests of compressing kernels.
#pragma once

#include <cmath>

#include "tests/unit/kernels/arrays.h"

namespace sirtaki::kernels {

enum class Shape { kNormal, kAny, kZeros, kFewNonzero, kFewMagnitudes, kTiny };
inline constexpr Shape kShapes[] = {Shape::kNormal,     Shape::kAny,           Shape::kZeros,
                                    Shape::kFewNonzero, Shape::kFewMagnitudes, Shape::kTiny};

// A sum of uniform numbers: near enough to normal, with the same bits everywhere.
inline float bell(Random& random) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) {
    sum += static_cast<double>(random() >> 11) * 0x1p-53;
  }
  return static_cast<float>(0.01 * sum);
}

inline float gradient_element(Shape shape, Random& random) {
  const float sign = random() % 2 == 0 ? 1.0F : -1.0F;
  switch (shape) {
    case Shape::kNormal:
      return bell(random);
    case Shape::kAny:
      return std::bit_cast<float>(static_cast<std::uint32_t>(element_bits(DType::kF32, random)));
    case Shape::kZeros:
      return sign * 0.0F;
    case Shape::kFewNonzero:
      return random() % 97 == 0 ? bell(random) : 0.0F;
    case Shape::kFewMagnitudes:
      return sign * static_cast<float>(random() % 3);
    case Shape::kTiny:
      return sign * std::bit_cast<float>(static_cast<std::uint32_t>(random() % 0x01000000));
  }
  return 0.0F;
}

inline Array gradient_array(std::size_t n, Shape shape, Random& random) {
  Array array(n * sizeof(float), random());
  for (std::size_t i = 0; i < n; ++i) {
    const float value = gradient_element(shape, random);
    std::memcpy(array.data() + i * sizeof(float), &value, sizeof(float));
  }
  return array;
}

inline std::vector<float> floats(const Array& array) {
  std::vector<float> all(array.size() / sizeof(float));
  if (!all.empty()) {
    std::memcpy(all.data(), array.data(), array.size());
  }
  return all;
}

inline Array array_of(const std::vector<float>& values) {
  Array array(values.size() * sizeof(float), 0);
  if (!values.empty()) {
    std::memcpy(array.data(), values.data(), array.size());
  }
  return array;
}

}  // namespace sirtaki::kernels
