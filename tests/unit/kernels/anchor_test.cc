#include "kernels/anchor/anchor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

struct Case {
  std::size_t n;
  Array a;
  Array b;
  Array out;

  Case(std::size_t size, Random& random)
      : n(size), a(size * 4, random()), b(size * 4, random()), out(size * 4, random()) {
    fill(DType::kF32, a, random);
    fill(DType::kF32, b, random);
    fill(DType::kF32, out, random);
  }
  std::int64_t count() const { return static_cast<std::int64_t>(n); }
};

template <class Kernel, class Reference>
void expect_same(const Case& c, const Kernel& kernel, const Reference& reference) {
  Array out = c.out;
  Array expected = c.out;
  kernel(out.data());
  reference(expected.data());
  ASSERT_EQ(out.copy(), expected.copy());
  ASSERT_TRUE(out.guards_intact());
}

void expect_same_as_reference(std::size_t n, Random& random) {
  const Case c(n, random);
  const std::int64_t count = c.count();
  const std::byte* a = c.a.data();
  const std::byte* b = c.b.data();
  const float factor = pick<float>({0.1F, 0.0F, -1.0F, 0.7F}, random);
  expect_same(
      c, [&](std::byte* out) { subtract(count, a, b, out); }, [&](std::byte* out) { ref::subtract(count, a, b, out); });
  expect_same(
      c, [&](std::byte* out) { carry_over(count, a, b, out); },
      [&](std::byte* out) { ref::carry_over(count, a, b, out); });
  expect_same(
      c, [&](std::byte* out) { subtract_scaled(count, a, factor, b, out); },
      [&](std::byte* out) { ref::subtract_scaled(count, a, factor, b, out); });
  for (const std::byte* other : {b, static_cast<const std::byte*>(nullptr)}) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(square_sum(count, a, other)),
              std::bit_cast<std::uint64_t>(ref::square_sum(count, a, other)));
  }
}

TEST(Anchor, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(target + " seed " + std::to_string(seed));
      Random random(seed);
      ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(seed < 40 ? seed : random() % 400, random));
    }
  });
}

TEST(Anchor, EqualModelsKeepTheirBitsInAMerge) {
  on_every_target([](const std::string& target) {
    SCOPED_TRACE(target);
    const std::vector<float> model = {0.0F, -0.0F, 1.5F, -3e38F, 1e-42F};
    Array moved = array_of(model);
    const Array snapshot = array_of({4.0F, -7.0F, 0.0F, 1e30F, -1e-40F});
    carry_over(5, snapshot.data(), snapshot.data(), moved.data());
    EXPECT_EQ(moved.copy(), array_of(model).copy());
  });
}

TEST(Anchor, WhatHappenedSinceTheSnapshotStays) {
  Array model = array_of({11.0F, 22.0F});
  carry_over(2, array_of({10.0F, 20.0F}).data(), array_of({8.0F, 24.0F}).data(), model.data());
  EXPECT_EQ(floats(model), (std::vector<float>{9.0F, 26.0F}));
}

TEST(Anchor, SquaresOfWhatIsNotFiniteAreNot) {
  EXPECT_EQ(square_sum(2, array_of({3.0F, 4.0F}).data(), nullptr), 25.0);
  EXPECT_TRUE(std::isinf(square_sum(2, array_of({3.0F, INFINITY}).data(), array_of({1.0F, 1.0F}).data())));
  EXPECT_TRUE(std::isnan(square_sum(2, array_of({NAN, 4.0F}).data(), array_of({1.0F, 1.0F}).data())));
  EXPECT_EQ(square_sum(0, nullptr, nullptr), 0.0);
}

}  // namespace
}  // namespace sirtaki::kernels
