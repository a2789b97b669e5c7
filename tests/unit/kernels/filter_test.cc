#include "kernels/filter/filter.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"
#include "tests/unit/kernels/oracles.h"

namespace sirtaki::kernels {
namespace {

FilterShape random_shape(std::uint64_t seed, Random& random) {
  const auto size = pick<std::int64_t>({1, 9, 16, 27, 144, 1024, 1500}, random);
  return {seed < 3 ? static_cast<std::int64_t>(seed) : static_cast<std::int64_t>(random() % 40), size};
}

std::size_t elements(const FilterShape& shape) {
  return static_cast<std::size_t>(shape.filters * shape.size);
}

Array chosen_ids(const FilterShape& shape, std::int64_t keep, Random& random) {
  const Array norms = gradient_array(static_cast<std::size_t>(shape.filters), Shape::kNormal, random);
  Array ids(2 * static_cast<std::size_t>(keep), random());
  filter_select(shape.filters, keep, norms.data(), ids.data());
  return ids;
}

TEST(Filter, NormsAreTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape kind : kShapes) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(kind)) + " seed " + std::to_string(seed));
        Random random(seed);
        const FilterShape shape = random_shape(seed, random);
        const Array gradient = gradient_array(elements(shape), kind, random);
        const Array residual = gradient_array(elements(shape), kind, random);
        Array left(gradient.size(), random());
        Array expected_left(gradient.size(), 0);
        Array norms(4 * static_cast<std::size_t>(shape.filters), random());
        Array expected(norms.size(), 0);
        filter_norms(shape, {gradient.data(), residual.data(), left.data()}, norms.data());
        ref::filter_norms(shape, {gradient.data(), residual.data(), expected_left.data()}, expected.data());
        ASSERT_EQ(norms.copy(), expected.copy());
        ASSERT_EQ(left.copy(), expected_left.copy());
        filter_norms(shape, {gradient.data()}, norms.data());
        ref::filter_norms(shape, {gradient.data()}, expected.data());
        ASSERT_EQ(norms.copy(), expected.copy());
        ASSERT_TRUE(norms.guards_intact() && left.guards_intact());
      }
    }
  });
}

TEST(Filter, SelectsAsTheReference) {
  for (const Shape kind : kShapes) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE("shape " + std::to_string(static_cast<int>(kind)) + " seed " + std::to_string(seed));
      Random random(seed);
      const std::size_t filters = random() % 300;
      const auto keep = static_cast<std::int64_t>(random() % (filters + 1));
      const Array norms = gradient_array(filters, kind, random);
      Array ids(2 * static_cast<std::size_t>(keep), random());
      Array expected(ids.size(), 0);
      filter_select(static_cast<std::int64_t>(filters), keep, norms.data(), ids.data());
      ref::filter_select(static_cast<std::int64_t>(filters), keep, norms.data(), expected.data());
      ASSERT_EQ(ids.copy(), expected.copy());
      ASSERT_TRUE(ids.guards_intact());
      ASSERT_TRUE(filter_ids_valid(static_cast<std::int64_t>(filters), keep, ids.data()));
    }
  }
}

TEST(Filter, GathersAsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape kind : kShapes) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(kind)) + " seed " + std::to_string(seed));
        Random random(seed);
        const FilterShape shape = random_shape(seed, random);
        const auto keep = static_cast<std::int64_t>(random() % (static_cast<std::uint64_t>(shape.filters) + 1));
        const Array ids = chosen_ids(shape, keep, random);
        const FilterGather how{kValues[random() % 3], random() % 4 != 0};
        Array values = gradient_array(elements(shape), kind, random);
        Array expected_values = values;
        Array sent(static_cast<std::size_t>(keep * shape.size) * dtype_size(how.value), random());
        Array expected(sent.size(), 0);
        const bool finite = filter_gather(shape, {ids.data(), keep}, how, values.data(), sent.data());
        ASSERT_EQ(finite, ref::filter_gather(shape, {ids.data(), keep}, how, expected_values.data(), expected.data()));
        ASSERT_EQ(sent.copy(), expected.copy());
        ASSERT_EQ(values.copy(), expected_values.copy());
        ASSERT_TRUE(values.guards_intact() && sent.guards_intact());
      }
    }
  });
}

TEST(Filter, KeepsTheRoundingOfHalvesAndTheirOverflow) {
  Array values = array_of({1.0F + 0x1p-20F, -70000.0F, 0x1p30F, 5});
  const std::uint16_t id = 0;
  Array ids(2, 0);
  std::memcpy(ids.data(), &id, 2);
  Array sent(6, 0);
  EXPECT_FALSE(filter_gather({1, 3}, {ids.data(), 1}, {DType::kF16}, values.data(), sent.data()));
  std::uint16_t bits[3];
  std::memcpy(bits, sent.data(), 6);
  EXPECT_EQ(bits[0], 0x3C00);
  EXPECT_EQ(bits[1], 0xFBFF);
  EXPECT_EQ(bits[2], 0x7C00);
  EXPECT_EQ(floats(values), (std::vector<float>{0x1p-20F, -70000.0F + 65504.0F, 0, 5}));
}

TEST(Filter, ConservesEveryBit) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const FilterShape shape = random_shape(seed, random);
    const std::int64_t keep = (shape.filters + 2) / 3;
    const FilterGather how{kValues[seed % 3]};
    const Array gradient = gradient_array(elements(shape), Shape::kNormal, random);
    Array residual = gradient_array(elements(shape), Shape::kNormal, random);
    const std::vector<float> g = floats(gradient);
    const std::vector<float> old = floats(residual);
    Array norms(4 * static_cast<std::size_t>(shape.filters), 0);
    Array ids(2 * static_cast<std::size_t>(keep), 0);
    Array sent(static_cast<std::size_t>(keep * shape.size) * dtype_size(how.value), 0);
    filter_norms(shape, {gradient.data(), residual.data(), residual.data()}, norms.data());
    filter_select(shape.filters, keep, norms.data(), ids.data());
    ASSERT_TRUE(filter_gather(shape, {ids.data(), keep}, how, residual.data(), sent.data()));
    Array sum(gradient.size(), 0);
    const FilterPart part{{ids.data(), keep}, sent.data()};
    filter_sum(shape, how.value, {&part, 1}, sum.data());
    const std::vector<float> travelled = floats(sum);
    const std::vector<float> left = floats(residual);
    for (std::size_t i = 0; i < g.size(); ++i) {
      ASSERT_EQ(travelled[i] + left[i], g[i] + old[i]) << "element " << i;
    }
  }
}

TEST(Filter, SumsPartsInTheirOrderAsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(target + " seed " + std::to_string(seed));
      Random random(seed);
      const FilterShape shape = random_shape(seed, random);
      const DType value = kValues[random() % 3];
      std::vector<Array> ids;
      std::vector<Array> sent;
      for (std::size_t rank = 0; rank < seed % 5; ++rank) {
        const auto keep = static_cast<std::int64_t>(random() % (static_cast<std::uint64_t>(shape.filters) + 1));
        ids.push_back(chosen_ids(shape, keep, random));
        sent.emplace_back(static_cast<std::size_t>(keep * shape.size) * dtype_size(value), random());
        Array values = gradient_array(elements(shape), Shape::kAny, random);
        filter_gather(shape, {ids.back().data(), keep}, {value}, values.data(), sent.back().data());
      }
      std::vector<FilterPart> parts;
      for (std::size_t rank = 0; rank < ids.size(); ++rank) {
        parts.push_back({{ids[rank].data(), static_cast<std::int64_t>(ids[rank].size() / 2)}, sent[rank].data()});
      }
      Array sum(4 * elements(shape), random());
      Array expected(sum.size(), 0);
      filter_sum(shape, value, parts, sum.data());
      ref::filter_sum(shape, value, parts, expected.data());
      ASSERT_EQ(sum.copy(), expected.copy());
      ASSERT_TRUE(sum.guards_intact());
    }
  });
}

TEST(Filter, PrefersNanThenTheLargestThenTheFirst) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Array norms = array_of({3, 5, nan, 3, 3});
  Array ids(6, 0);
  filter_select(5, 3, norms.data(), ids.data());
  const std::vector<std::uint16_t> expected = {0, 1, 2};
  EXPECT_EQ(std::memcmp(ids.data(), expected.data(), 6), 0);
}

TEST(Filter, TakesTheMeanMagnitude) {
  const Array gradient = array_of({1, -2, 3, -4, 0, 0});
  Array norms(8, 0);
  filter_norms({2, 3}, {gradient.data()}, norms.data());
  EXPECT_EQ(floats(norms), (std::vector<float>{2.0F, 4.0F / 3.0F}));
}

TEST(Filter, FindsBadIdsAndImpossibleSizes) {
  const auto valid = [](std::vector<std::uint16_t> ids) {
    return filter_ids_valid(10, static_cast<std::int64_t>(ids.size()), reinterpret_cast<const std::byte*>(ids.data()));
  };
  EXPECT_TRUE(valid({}));
  EXPECT_TRUE(valid({0, 3, 9}));
  EXPECT_FALSE(valid({0, 10}));
  EXPECT_FALSE(valid({3, 3}));
  EXPECT_FALSE(valid({4, 3}));
  std::byte none{};
  EXPECT_THROW(filter_norms({65537, 1}, {&none}, &none), BugError);
  EXPECT_THROW(filter_norms({1, 0}, {&none}, &none), BugError);
  EXPECT_THROW(filter_select(2, 3, &none, &none), BugError);
  EXPECT_THROW(filter_gather({1, 1}, {&none, 1}, {DType::kF64}, &none, &none), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
