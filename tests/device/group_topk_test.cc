#include "kernels/group_topk/group_topk.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/device/machine.h"
#include "tests/unit/kernels/oracles.h"

namespace sirtaki::device {
namespace {

using kernels::GroupTopk;
using kernels::kValues;
using kernels::Random;
using kernels::Shape;

void expect_same_payload(const GroupTopk& how, Gradient& gradient) {
  Memory payload(kernels::group_topk_bytes(how, gradient.n()));
  Memory flag(sizeof(std::uint32_t));
  std::vector<std::byte> expected(payload.size());
  const bool finite = kernels::ref::group_topk_encode(how, gradient.n(), gradient.host(), expected.data());
  const auto arrays = gradient.device();
  const kernels::cuda::GroupTopkEncode args{how, gradient.n(), arrays, payload.data(),
                                            reinterpret_cast<std::uint32_t*>(flag.data())};
  ASSERT_TRUE(device::kernels().group_topk_encode(args, nullptr).ok());
  EXPECT_EQ(Gradient::first_difference(expected, payload.copy()), "");
  EXPECT_EQ(flag.value<std::uint32_t>(), finite ? 0U : 1U);
  gradient.expect_same_left();
}

std::string words(const GroupTopk& how, std::size_t n, std::uint64_t seed) {
  return "group " + std::to_string(how.group) + " keep " + std::to_string(how.keep) + " value " +
         std::string(dtype_name(how.value)) + " n " + std::to_string(n) + " seed " + std::to_string(seed);
}

TEST(GroupTopkOnDevice, WritesTheBytesOfTheReference) {
  const std::vector<GroupTopk> sizes = {{512, 5},   {256, 4},    {1024, 10},   {1024, 64},  {100, 7},
                                        {1, 1},     {64, 64},    {1000, 400},  {2048, 300}, {4096, 41},
                                        {5000, 60}, {8192, 900}, {65536, 3000}};
  std::uint64_t seed = 0;
  for (const GroupTopk& size : sizes) {
    for (const Shape shape : kernels::kShapes) {
      GroupTopk how = size;
      how.value = kValues[++seed % 3];
      Random random(seed);
      const std::size_t n = seed % 5 == 0 ? random() % 3 : random() % (3 * static_cast<std::size_t>(how.group) + 9);
      SCOPED_TRACE(words(how, n, seed) + " shape " + std::to_string(static_cast<int>(shape)));
      set_order(static_cast<int>(seed) % orders());
      Gradient gradient(std::min(n, most_elements()), shape, seed % 4 != 0, random);
      expect_same_payload(how, gradient);
    }
  }
}

TEST(GroupTopkOnDevice, WritesTheBytesOfTheReferenceForManyGroups) {
  for (const GroupTopk& how : {GroupTopk{512, 5}, GroupTopk{1024, 10, DType::kBF16}, GroupTopk{4096, 256}}) {
    Random random(9);
    const std::size_t n = most_elements() - 3;
    SCOPED_TRACE(words(how, n, 9));
    Gradient gradient(n, Shape::kNormal, true, random);
    expect_same_payload(how, gradient);
  }
}

TEST(GroupTopkOnDevice, AddsAsTheReferenceDoes) {
  const std::vector<GroupTopk> sizes = {{512, 5},  {256, 40},    {1000, 12},   {4096, 100},
                                        {4097, 9}, {16384, 700}, {65536, 5000}};
  std::uint64_t seed = 0;
  for (const GroupTopk& size : sizes) {
    for (const std::size_t ranks : {0, 1, 3}) {
      GroupTopk how = size;
      how.value = kValues[++seed % 3];
      Random random(seed);
      const std::size_t n = std::min<std::size_t>(random() % 12000, most_elements());
      SCOPED_TRACE(words(how, n, seed) + " ranks " + std::to_string(ranks));
      set_order(static_cast<int>(seed) % orders());
      std::vector<std::vector<std::byte>> payloads;
      std::vector<const std::byte*> host;
      std::vector<std::unique_ptr<Memory>> copies;
      std::vector<const std::byte*> there;
      for (std::size_t r = 0; r < ranks; ++r) {
        const kernels::Array gradient = kernels::gradient_array(n, kernels::kShapes[r % 6], random);
        payloads.emplace_back(kernels::group_topk_bytes(how, static_cast<std::int64_t>(n)));
        kernels::group_topk_encode(how, kernels::count(gradient), {gradient.data()}, payloads.back().data());
      }
      for (const std::vector<std::byte>& payload : payloads) {
        host.push_back(payload.data());
        copies.push_back(std::make_unique<Memory>(payload));
        there.push_back(copies.back()->data());
      }
      Memory out(n * sizeof(float), 4 * (random() % 4));
      std::vector<std::byte> expected(out.size());
      kernels::ref::group_topk_sum(how, static_cast<std::int64_t>(n), host, expected.data());
      const auto divisor = static_cast<std::int64_t>(1 + seed % 7);
      divide(expected, divisor);
      const kernels::cuda::GroupTopkSum args{how, static_cast<std::int64_t>(n), there, out.data(), divisor};
      ASSERT_TRUE(device::kernels().group_topk_sum(args, nullptr).ok());
      EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
    }
  }
}

TEST(GroupTopkOnDevice, RefusesWhatItCannotRead) {
  Memory memory(256);
  auto* const flag = reinterpret_cast<std::uint32_t*>(memory.data());
  const auto encode = [&](const GroupTopk& how, const kernels::Feedback& arrays, std::byte* payload) {
    return device::kernels().group_topk_encode({how, 4, arrays, payload, flag}, nullptr).ok();
  };
  EXPECT_FALSE(encode({0, 1}, {memory.data()}, memory.data()));
  EXPECT_FALSE(encode({4, 5}, {memory.data()}, memory.data()));
  EXPECT_FALSE(encode({4, 1, DType::kI8}, {memory.data()}, memory.data()));
  EXPECT_FALSE(encode({4, 1}, {memory.data() + 1}, memory.data()));
  EXPECT_FALSE(encode({4, 1}, {memory.data()}, memory.data() + 2));
  EXPECT_FALSE(encode({4, 1}, {memory.data(), memory.data()}, memory.data()));
}

}  // namespace
}  // namespace sirtaki::device
