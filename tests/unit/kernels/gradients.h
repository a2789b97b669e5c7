// float32 arrays that resemble gradients and residuals, for tests of compressing kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/feedback.h"
#include "tests/unit/kernels/arrays.h"

namespace sirtaki::kernels {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Shape { kNormal, kAny, kZeros, kFewNonzero, kFewMagnitudes, kTiny };
inline constexpr Shape kShapes[] = {Shape::kNormal,     Shape::kAny,           Shape::kZeros,
                                    Shape::kFewNonzero, Shape::kFewMagnitudes, Shape::kTiny};

// Dtypes of selected elements on the wire.
inline constexpr DType kValues[] = {DType::kF32, DType::kF16, DType::kBF16};

// Returns a sum of uniform numbers: nearly normal, with the same bits on every machine.
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

inline std::int64_t count(const Array& array) {
  return static_cast<std::int64_t>(array.size() / sizeof(float));
}

// Inputs of a kernel and its reference from one gradient, with feedback if there is a residual; each writes its
// residual to memory of its own.
class Twins {
 public:
  // `gradient` and `residual` must outlive it.
  Twins(const Array& gradient, const Array* residual, Random& random)
      : left_(gradient.size(), random()), expected_left_(gradient.size(), 0) {
    arrays_ = expected_ = {gradient.data()};
    if (residual != nullptr) {
      arrays_ = {gradient.data(), residual->data(), left_.data()};
      expected_ = {gradient.data(), residual->data(), expected_left_.data()};
    }
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  const Feedback& arrays() const { return arrays_; }
  const Feedback& expected() const { return expected_; }
  void expect_same_left() const {
    EXPECT_TRUE(left_.guards_intact());
    if (arrays_.left != nullptr) {
      EXPECT_EQ(left_.copy(), expected_left_.copy());
    }
  }

 private:
  Array left_;
  Array expected_left_;
  Feedback arrays_{};
  Feedback expected_{};
};

}  // namespace sirtaki::kernels
