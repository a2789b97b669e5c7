#include "kernels/filter/filter.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/device/machine.h"
#include "tests/unit/kernels/oracles.h"

namespace sirtaki::device {
namespace {

using kernels::FilterShape;
using kernels::kValues;
using kernels::Random;

FilterShape random_shape(std::uint64_t seed, Random& random) {
  static const std::vector<std::int64_t> kSizes = {1, 9, 27, 31, 288, 576, 1024, 1025, 2304};
  const std::int64_t size = kernels::pick(kSizes, random);
  const std::int64_t most = std::max<std::int64_t>(3, 3000 / size);
  return {seed % 7 == 0 ? 0 : 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)), size};
}

std::string words(const FilterShape& shape, std::uint64_t seed) {
  return std::to_string(shape.filters) + " filters of " + std::to_string(shape.size) + " seed " + std::to_string(seed);
}

std::size_t most_filters() {
  return std::min<std::size_t>(65536, most_elements());
}

TEST(FilterOnDevice, FindsTheNormsOfTheReference) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const FilterShape shape = random_shape(seed, random);
    SCOPED_TRACE(words(shape, seed));
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(static_cast<std::size_t>(shape.filters * shape.size), kernels::kShapes[seed % 6], seed % 3 != 0,
                      random);
    Memory norms(static_cast<std::size_t>(shape.filters) * sizeof(float));
    std::vector<std::byte> expected(norms.size());
    kernels::ref::filter_norms(shape, gradient.host(), expected.data());
    const auto arrays = gradient.device();
    ASSERT_TRUE(device::kernels().filter_norms({shape, arrays, norms.data()}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, norms.copy()), "");
    gradient.expect_same_left();
  }
}

TEST(FilterOnDevice, SelectsWhatTheReferenceSelects) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const std::size_t filters = seed == 3 ? most_filters() : random() % (seed % 2 == 0 ? 1500 : 70);
    const auto count = static_cast<std::int64_t>(filters);
    const auto keep = static_cast<std::int64_t>(random() % (filters + 1));
    SCOPED_TRACE(words({count, 1}, seed) + " keep " + std::to_string(keep));
    set_order(static_cast<int>(seed) % orders());
    const kernels::Array norms = kernels::gradient_array(filters, kernels::kShapes[seed % 6], random);
    Memory device_norms(norms);
    Memory ids(static_cast<std::size_t>(keep) * 2);
    std::vector<std::byte> expected(ids.size());
    kernels::ref::filter_select(count, keep, norms.data(), expected.data());
    ASSERT_TRUE(device::kernels().filter_select({count, keep, device_norms.data(), ids.data()}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, ids.copy()), "");
  }
}

// Some filters of a tensor, ascending.
std::vector<std::byte> random_ids(const FilterShape& shape, Random& random) {
  std::vector<std::byte> ids;
  for (std::int64_t f = 0; f < shape.filters; ++f) {
    if (random() % 3 == 0) {
      const auto id = static_cast<std::uint16_t>(f);
      ids.resize(ids.size() + 2);
      std::memcpy(ids.data() + ids.size() - 2, &id, 2);
    }
  }
  return ids;
}

TEST(FilterOnDevice, GathersWhatTheReferenceGathers) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const FilterShape shape = random_shape(seed, random);
    SCOPED_TRACE(words(shape, seed));
    const kernels::FilterGather how{kValues[seed % 3], seed % 2 == 0};
    const std::vector<std::byte> ids = random_ids(shape, random);
    const auto count = static_cast<std::int64_t>(ids.size() / 2);
    const kernels::Array a = kernels::gradient_array(static_cast<std::size_t>(shape.filters * shape.size),
                                                     kernels::kShapes[seed % 6], random);
    std::vector<std::byte> values = a.copy();
    Memory device_ids(ids);
    Memory device_values(a, 4 * (random() % 4));
    Memory sent(static_cast<std::size_t>(count * shape.size) * dtype_size(how.value));
    Memory flag(sizeof(std::uint32_t));
    std::vector<std::byte> expected(sent.size());
    const bool finite = kernels::ref::filter_gather(shape, {ids.data(), count}, how, values.data(), expected.data());
    const kernels::cuda::FilterTake args{shape,       {device_ids.data(), count},
                                         how,         device_values.data(),
                                         sent.data(), reinterpret_cast<std::uint32_t*>(flag.data())};
    ASSERT_TRUE(device::kernels().filter_gather(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, sent.copy()), "");
    EXPECT_EQ(Gradient::first_difference(values, device_values.copy()), "");
    EXPECT_EQ(flag.value<std::uint32_t>(), finite ? 0U : 1U);
  }
}

TEST(FilterOnDevice, AddsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const FilterShape shape = random_shape(seed, random);
    const DType value = kValues[seed % 3];
    SCOPED_TRACE(words(shape, seed));
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::unique_ptr<Memory>> copies;
    std::vector<kernels::FilterPart> host;
    std::vector<kernels::FilterPart> there;
    memory.reserve(8);
    for (std::size_t r = 0; r < seed % 4; ++r) {
      const std::vector<std::byte>& ids = memory.emplace_back(random_ids(shape, random));
      const auto count = static_cast<std::int64_t>(ids.size() / 2);
      kernels::Array numbers(static_cast<std::size_t>(count * shape.size) * dtype_size(value), 0);
      kernels::fill(value, numbers, random);
      const std::vector<std::byte>& sent = memory.emplace_back(numbers.copy());
      copies.push_back(std::make_unique<Memory>(ids));
      copies.push_back(std::make_unique<Memory>(sent));
      host.push_back({{ids.data(), count}, sent.data()});
      there.push_back({{copies[copies.size() - 2]->data(), count}, copies.back()->data()});
    }
    Memory out(static_cast<std::size_t>(shape.filters * shape.size) * sizeof(float));
    std::vector<std::byte> expected(out.size());
    kernels::ref::filter_sum(shape, value, host, expected.data());
    ASSERT_TRUE(device::kernels().filter_sum({shape, value, there, out.data()}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(FilterOnDevice, RefusesShapesThatDoNotExist) {
  Memory memory(256);
  const auto norms = [&](const FilterShape& shape) {
    return device::kernels().filter_norms({shape, {memory.data()}, memory.data()}, nullptr).ok();
  };
  EXPECT_FALSE(norms({65537, 1}));
  EXPECT_FALSE(norms({1, 0}));
  EXPECT_FALSE(norms({-1, 1}));
  EXPECT_FALSE(device::kernels().filter_select({4, 5, memory.data(), memory.data()}, nullptr).ok());
}

}  // namespace
}  // namespace sirtaki::device
