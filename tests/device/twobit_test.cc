// Ternary codes of all blocks of a tensor, against the reference of a block.
#include "kernels/twobit/twobit.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/magnitude/magnitude.h"
#include "kernels/twobit/exponent.h"
#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

using kernels::Random;
using kernels::Shape;
using kernels::cuda::TwobitBlocks;

template <class T>
T* as(Memory& memory) {
  return reinterpret_cast<T*>(memory.data());
}

struct Case {
  TwobitBlocks blocks;
  std::vector<std::byte> exponents;
  std::string words;

  Case(std::uint64_t seed, std::int64_t n, Random& random) : blocks{n, 1024 * std::int64_t(1 + random() % 5)} {
    for (std::int64_t b = 0; b < count(); ++b) {
      static const std::vector<int> kEdges = {-127, -126, -125, 103, 104, 127};
      const int exponent = random() % 3 == 0 ? kernels::pick(kEdges, random) : -9 + static_cast<int>(random() % 5);
      exponents.push_back(static_cast<std::byte>(exponent));
    }
    words = "n " + std::to_string(n) + " block " + std::to_string(blocks.block) + " seed " + std::to_string(seed);
  }
  std::int64_t count() const { return (blocks.n + blocks.block - 1) / blocks.block; }
  std::int64_t size(std::int64_t b) const { return std::min(blocks.block, blocks.n - b * blocks.block); }
  std::size_t place(std::int64_t b) const {
    return static_cast<std::size_t>(b) * (1 + kernels::twobit_bytes(blocks.block));
  }
  std::size_t bytes() const {
    return count() == 0 ? 0 : place(count() - 1) + 1 + kernels::twobit_bytes(size(count() - 1));
  }
  std::vector<std::byte> encoded(const kernels::Feedback& arrays) const {
    std::vector<std::byte> payload(bytes());
    for (std::int64_t b = 0; b < count(); ++b) {
      const std::byte exponent = exponents[static_cast<std::size_t>(b)];
      payload[place(b)] = exponent;
      kernels::ref::twobit_encode(std::to_integer<std::int8_t>(exponent), size(b), arrays.from(b * blocks.block),
                                  payload.data() + place(b) + 1);
    }
    return payload;
  }
};

std::size_t random_codes_length(std::uint64_t seed, Random& random) {
  return seed % 4 == 0 ? random() % 40 : random() % std::min<std::size_t>(9000, most_elements());
}

void expect_same_codes(const Case& the_case, Gradient& gradient) {
  Memory payload(the_case.bytes(), 1);
  Memory exponents(the_case.exponents);
  Memory not_finite(sizeof(std::uint32_t));
  const kernels::cuda::TwobitEncode args{the_case.blocks, gradient.device(), exponents.data(), payload.data(),
                                         as<std::uint32_t>(not_finite)};
  ASSERT_TRUE(device::kernels().twobit_encode(args, nullptr).ok());
  EXPECT_EQ(Gradient::first_difference(the_case.encoded(gradient.host()), payload.copy()), "");
  gradient.expect_same_left();
  EXPECT_EQ(not_finite.value<std::uint32_t>(), 0U);
}

TEST(TwobitOnDevice, WritesTheBytesOfTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const std::size_t n = random_codes_length(seed, random);
    const Case the_case(seed, static_cast<std::int64_t>(n), random);
    SCOPED_TRACE(the_case.words);
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(n, kernels::kShapes[seed % 6], seed % 5 != 0, random);
    expect_same_codes(the_case, gradient);
  }
}

TEST(TwobitOnDevice, WritesTheBytesOfTheReferenceForALargeBlock) {
  Random random(5);
  Case the_case(5, static_cast<std::int64_t>(most_elements()) - 5, random);
  the_case.blocks.block = std::int64_t{1} << 21;
  the_case.exponents = {std::byte{0xF9}};
  Gradient gradient(most_elements() - 5, Shape::kNormal, true, random);
  expect_same_codes(the_case, gradient);
}

TEST(TwobitOnDevice, TellsThatAnExponentIsOfNoNumber) {
  Random random(6);
  Case the_case(6, 5000, random);
  the_case.exponents.back() = kernels::cuda::kTwobitNotFinite;
  Gradient gradient(5000, Shape::kNormal, true, random);
  Memory payload(the_case.bytes());
  Memory exponents(the_case.exponents);
  Memory not_finite(sizeof(std::uint32_t));
  const kernels::cuda::TwobitEncode args{the_case.blocks, gradient.device(), exponents.data(), payload.data(),
                                         as<std::uint32_t>(not_finite)};
  ASSERT_TRUE(device::kernels().twobit_encode(args, nullptr).ok());
  EXPECT_EQ(not_finite.value<std::uint32_t>(), 1U);
}

// Returns the exponents that the host would choose.
std::vector<std::byte> chosen(const Case& the_case, const std::vector<kernels::Magnitude>& sizes, double factor,
                              bool whole) {
  double sum = 0;
  float largest = 0;
  bool finite = true;
  for (const kernels::Magnitude& size : sizes) {
    sum += size.sum;
    largest = std::max(largest, size.largest);
    finite = finite && std::isfinite(size.largest);
  }
  std::vector<std::byte> exponents;
  for (std::int64_t b = 0; b < the_case.count(); ++b) {
    const kernels::Magnitude& size = sizes[static_cast<std::size_t>(b)];
    const int wanted = whole ? kernels::twobit_wanted(factor, sum, the_case.blocks.n, largest)
                             : kernels::twobit_wanted(factor, size.sum, the_case.size(b), size.largest);
    const bool sound = whole ? finite : std::isfinite(size.largest);
    exponents.push_back(sound ? static_cast<std::byte>(std::max(wanted, kernels::twobit_carrying(size.largest)))
                              : kernels::cuda::kTwobitNotFinite);
  }
  return exponents;
}

void expect_same_exponents(const Case& the_case, Gradient& gradient, double factor) {
  const auto count = static_cast<std::size_t>(the_case.count());
  Memory magnitudes((count + 1) * sizeof(kernels::cuda::TwobitMagnitude));
  auto* const there = as<kernels::cuda::TwobitMagnitude>(magnitudes);
  ASSERT_TRUE(device::kernels().twobit_measure({the_case.blocks, gradient.device(), there}, nullptr).ok());
  std::vector<kernels::Magnitude> sizes;
  for (std::int64_t b = 0; b < the_case.count(); ++b) {
    const kernels::Feedback arrays = gradient.host().from(b * the_case.blocks.block);
    sizes.push_back(kernels::ref::magnitude(the_case.size(b), arrays));
    const auto found = magnitudes.value<kernels::cuda::TwobitMagnitude>(static_cast<std::size_t>(b));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(found.sum), std::bit_cast<std::uint64_t>(sizes.back().sum));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(found.largest), std::bit_cast<std::uint32_t>(sizes.back().largest));
  }
  for (const bool whole : {false, true}) {
    Memory exponents(count, 1);
    const kernels::cuda::TwobitChoose args{the_case.blocks, there, factor, whole, exponents.data()};
    ASSERT_TRUE(device::kernels().twobit_choose(args, nullptr).ok());
    EXPECT_EQ(exponents.copy(), chosen(the_case, sizes, factor, whole)) << whole;
  }
}

TEST(TwobitOnDevice, ChoosesTheExponentsOfTheReference) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const std::size_t n = random_codes_length(seed, random);
    const Case the_case(seed, static_cast<std::int64_t>(n), random);
    SCOPED_TRACE(the_case.words);
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(n, kernels::kShapes[seed % 6], seed % 5 != 0, random);
    expect_same_exponents(the_case, gradient, seed % 2 == 0 ? 1.0 : 2.75);
  }
}

// More blocks than a block has threads: their sums are added in turns.
TEST(TwobitOnDevice, ChoosesTheExponentsOfTheReferenceForManyBlocks) {
  for (int order = 0; order < orders(); ++order) {
    Random random(7);
    const std::size_t n = 600 * 1024 - 77;
    Case the_case(7, static_cast<std::int64_t>(n), random);
    SCOPED_TRACE(order);
    the_case.blocks.block = 1024;
    set_order(order);
    Gradient gradient(n, Shape::kNormal, true, random);
    expect_same_exponents(the_case, gradient, 1.0);
  }
}

TEST(TwobitOnDevice, AddsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Random random(seed);
    const std::size_t n = random_codes_length(seed, random);
    Case the_case(seed, static_cast<std::int64_t>(n), random);
    SCOPED_TRACE(the_case.words);
    std::vector<std::vector<std::byte>> host;
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<const std::byte*> payloads;
    for (std::size_t r = 0; r < seed % 4; ++r) {
      const kernels::Array gradient = kernels::gradient_array(n, r % 2 == 0 ? Shape::kAny : Shape::kNormal, random);
      std::shuffle(the_case.exponents.begin(), the_case.exponents.end(), random);
      host.push_back(the_case.encoded({gradient.data()}));
      memory.push_back(std::make_unique<Memory>(host.back(), random() % 4));
      payloads.push_back(memory.back()->data());
    }
    std::vector<std::byte> expected(n * sizeof(float));
    for (std::int64_t b = 0; b < the_case.count(); ++b) {
      std::vector<kernels::TwobitPart> parts;
      for (const std::vector<std::byte>& payload : host) {
        const std::size_t place = the_case.place(b);
        parts.push_back({payload.data() + place + 1, std::to_integer<std::int8_t>(payload[place])});
      }
      const auto first = static_cast<std::size_t>(b * the_case.blocks.block);
      kernels::ref::twobit_sum(parts, the_case.size(b), expected.data() + first * sizeof(float));
    }
    const auto divisor = static_cast<std::int64_t>(1 + seed % 3);
    divide(expected, divisor);
    Memory sums(n * sizeof(float));
    ASSERT_TRUE(device::kernels().twobit_sum({the_case.blocks, payloads, sums.data(), divisor}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, sums.copy()), "");
  }
}

TEST(TwobitOnDevice, RefusesBlocksThatCutRecords) {
  Memory memory(4096);
  const auto sum = [&](const TwobitBlocks& blocks, std::int64_t divisor) {
    return device::kernels().twobit_sum({blocks, {}, memory.data(), divisor}, nullptr).ok();
  };
  EXPECT_TRUE(sum({1000, 1024}, 1));
  EXPECT_FALSE(sum({1000, 1000}, 1));
  EXPECT_FALSE(sum({-1, 1024}, 1));
  EXPECT_FALSE(sum({10, 0}, 1));
  EXPECT_FALSE(sum({10, 1024}, 0));
}

}  // namespace
}  // namespace sirtaki::device
