#include "compression/counted_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

using Planes = std::vector<std::byte>;
using Exponents = std::vector<std::int8_t>;

std::byte* at(Exponents& exponents) {
  return std::as_writable_bytes(std::span(exponents)).data();
}

std::vector<float> random_floats(std::int64_t numel, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> all(static_cast<std::size_t>(numel));
  std::generate(all.begin(), all.end(), [&] { return normal(random); });
  return all;
}

TEST(CountedCodes, WantTheThresholdsThatTheCodecTakesAlone) {
  std::mt19937_64 random(1);
  constexpr std::int64_t kNumel = 5000;
  for (const std::int64_t by_block : {0, 1}) {
    CodecRun run("twobit", {1, params::kOne, by_block}, kNumel);
    std::vector<float> gradient = random_floats(kNumel, random);
    std::fill_n(gradient.begin(), 2048, 0.125F);
    const kernels::Feedback arrays{.gradient = bytes(gradient), .residual = bytes(run.left), .left = bytes(run.left)};
    run.coder().begin(arrays);
    Exponents wanted(CountedCodes::exponent_bytes(kNumel));
    ASSERT_EQ(wanted.size(), 3U);
    run.coder().counted()->want({0, kNumel}, arrays, at(wanted));
    Exponents of_second(2);
    run.coder().counted()->want({2048, kNumel - 2048}, arrays.from(2048), at(of_second));
    EXPECT_EQ(of_second, Exponents(wanted.begin() + 1, wanted.end()));
    run.step(gradient, by_block == 0);
    // Each block has an exponent and 512 bytes of planes.
    for (std::size_t block = 0; block < wanted.size(); ++block) {
      EXPECT_EQ(static_cast<std::byte>(wanted[block]), run.payload[block * 513]) << "block " << block;
    }
  }
}

TEST(CountedCodes, CountsMeanTheSumOfTheCodesAndNothingIsLost) {
  for (const int ranks : {1, 2, 3, 4, 127}) {
    for (const std::int64_t numel : {1, 2047, 2048, 5001}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(numel) + " elements");
      std::mt19937_64 random(static_cast<std::uint64_t>(numel));
      Exponents exponents(CountedCodes::exponent_bytes(numel));
      std::generate(exponents.begin(), exponents.end(), [&] { return static_cast<std::int8_t>(random() % 3 - 2); });
      std::vector<Planes> codes(static_cast<std::size_t>(ranks), Planes(CountedCodes::code_bytes(numel)));
      std::vector<const std::byte*> pointers;
      std::vector<float> balance(static_cast<std::size_t>(numel));
      for (Planes& one : codes) {
        // Multiples of a small power of two, so that sums are exact.
        std::vector<float> gradient = random_floats(numel, random);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = std::round(gradient[i] * 64) / 64;
          balance[i] += gradient[i];
        }
        std::vector<float> left(gradient.size());
        CountedCodes::encode(numel, at(exponents), {bytes(gradient), bytes(left), bytes(left)}, one.data());
        ASSERT_TRUE(CountedCodes::codes_valid(numel, one.data()));
        for (std::size_t i = 0; i < left.size(); ++i) {
          balance[i] -= left[i];
        }
        pointers.push_back(one.data());
      }
      Planes counts(CountedCodes::count_bytes(numel, ranks));
      CountedCodes::count(numel, pointers, counts.data());
      ASSERT_TRUE(CountedCodes::counts_valid(numel, ranks, counts.data()));
      std::vector<float> out(balance.size());
      CountedCodes::decode(numel, ranks, at(exponents), counts.data(), bytes(out));
      EXPECT_EQ(out, balance);
    }
  }
}

TEST(CountedCodes, KnowWhatNoRankCanHaveSentAndWhatIsTooLarge) {
  constexpr std::int64_t kNumel = 2050;
  Exponents exponents = {3, CountedCodes::kLeastExponent};
  EXPECT_TRUE(CountedCodes::exponents_valid(kNumel, at(exponents)));
  exponents[1] = CountedCodes::kLeastExponent - 1;
  EXPECT_FALSE(CountedCodes::exponents_valid(kNumel, at(exponents)));
  exponents[1] = 126;
  EXPECT_TRUE(CountedCodes::summable(kNumel, at(exponents), 3));
  EXPECT_FALSE(CountedCodes::summable(kNumel, at(exponents), 4));
  Planes codes(CountedCodes::code_bytes(kNumel));
  EXPECT_EQ(codes.size(), 514U);
  codes[512] = std::byte{4};
  EXPECT_FALSE(CountedCodes::codes_valid(kNumel, codes.data())) << "behind the last element";
  Planes counts(CountedCodes::count_bytes(kNumel, 2));
  EXPECT_EQ(counts.size(), 3U * 257);
  counts[768] = counts[769] = counts[770] = std::byte{1};
  EXPECT_FALSE(CountedCodes::counts_valid(kNumel, 2, counts.data())) << "7 - 2 of two ranks";
}

}  // namespace
}  // namespace sirtaki::compression
