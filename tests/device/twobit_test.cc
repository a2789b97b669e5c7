#include "kernels/twobit/twobit.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

using kernels::Random;
using kernels::Shape;
using kernels::cuda::TwobitStripes;

template <class T>
T* as(Memory& memory) {
  return reinterpret_cast<T*>(memory.data());
}

struct Case {
  TwobitStripes stripes;
  std::vector<std::int32_t> exponents;
  std::string words;

  Case(std::uint64_t seed, std::int64_t n, Random& random) : stripes{n, 1024 * std::int64_t(1 + random() % 5), 0} {
    stripes.pitch = kernels::twobit_bytes(stripes.stripe) + random() % 3;
    for (std::int64_t s = 0; s < count(); ++s) {
      static const std::vector<std::int32_t> kEdges = {-149, -148, -126, -125, 103, 104, 127};
      exponents.push_back(random() % 3 == 0 ? kernels::pick(kEdges, random) : -9 + static_cast<int>(random() % 5));
    }
    words = "n " + std::to_string(n) + " stripe " + std::to_string(stripes.stripe) + " seed " + std::to_string(seed);
  }
  std::int64_t count() const { return (stripes.n + stripes.stripe - 1) / stripes.stripe; }
  std::int64_t size(std::int64_t s) const { return std::min(stripes.stripe, stripes.n - s * stripes.stripe); }
  std::size_t bytes() const {
    return count() == 0
               ? 0
               : static_cast<std::size_t>(count() - 1) * stripes.pitch + kernels::twobit_bytes(size(count() - 1));
  }
  template <class T>
  std::vector<std::byte> bytes_of(const std::vector<T>& values) const {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!values.empty()) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    return bytes;
  }
  std::vector<std::byte> exponent_bytes() const { return bytes_of(exponents); }
};

std::size_t random_codes_length(std::uint64_t seed, Random& random) {
  return seed % 4 == 0 ? random() % 40 : random() % std::min<std::size_t>(9000, most_elements());
}

void expect_same_codes(const Case& the_case, Gradient& gradient) {
  const TwobitStripes& stripes = the_case.stripes;
  Memory planes(the_case.bytes(), 1);
  Memory exponents(the_case.exponent_bytes());
  Memory stats(static_cast<std::size_t>(the_case.count()) * sizeof(kernels::TwobitStats));
  Memory records(static_cast<std::size_t>((stripes.n + 1023) / 1024) * sizeof(kernels::cuda::TwobitRecord));
  std::vector<std::byte> expected = planes.copy();
  const kernels::Feedback arrays = gradient.host();
  std::vector<kernels::TwobitStats> expected_stats;
  for (std::int64_t s = 0; s < the_case.count(); ++s) {
    expected_stats.push_back(kernels::ref::twobit_encode(
        the_case.exponents[static_cast<std::size_t>(s)], the_case.size(s), arrays.from(s * stripes.stripe),
        expected.data() + static_cast<std::size_t>(s) * stripes.pitch));
  }
  const kernels::cuda::TwobitEncode args{stripes,
                                         gradient.device(),
                                         as<std::int32_t>(exponents),
                                         planes.data(),
                                         as<kernels::TwobitStats>(stats),
                                         as<kernels::cuda::TwobitRecord>(records)};
  ASSERT_TRUE(device::kernels().twobit_encode(args, nullptr).ok());
  EXPECT_EQ(Gradient::first_difference(expected, planes.copy()), "");
  gradient.expect_same_left();
  for (std::size_t s = 0; s < expected_stats.size(); ++s) {
    const auto found = stats.value<kernels::TwobitStats>(s);
    EXPECT_EQ(found.finite, expected_stats[s].finite);
    EXPECT_EQ(found.sent, expected_stats[s].sent);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(found.magnitude), std::bit_cast<std::uint64_t>(expected_stats[s].magnitude));
  }
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

TEST(TwobitOnDevice, WritesTheBytesOfTheReferenceForALargeStripe) {
  Random random(5);
  Case the_case(5, static_cast<std::int64_t>(most_elements()) - 5, random);
  the_case.stripes.stripe = std::int64_t{1} << 21;
  the_case.stripes.pitch = 0;
  the_case.exponents = {-7};
  Gradient gradient(most_elements() - 5, Shape::kNormal, true, random);
  expect_same_codes(the_case, gradient);
}

// Valid planes of some ranks, the same memory on both sides.
struct Parts {
  std::vector<std::vector<std::byte>> host;
  std::vector<std::vector<std::int32_t>> host_exponents;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<kernels::cuda::TwobitSource> sources;

  Parts(Case& the_case, std::size_t ranks, Random& random) {
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto n = static_cast<std::size_t>(the_case.stripes.n);
      const kernels::Array gradient = kernels::gradient_array(n, r % 2 == 0 ? Shape::kAny : Shape::kNormal, random);
      host.emplace_back(the_case.bytes());
      for (std::int64_t s = 0; s < the_case.count(); ++s) {
        const kernels::Feedback arrays{gradient.data()};
        kernels::twobit_encode(-7, the_case.size(s), arrays.from(s * the_case.stripes.stripe),
                               host.back().data() + static_cast<std::size_t>(s) * the_case.stripes.pitch);
      }
      std::shuffle(the_case.exponents.begin(), the_case.exponents.end(), random);
      host_exponents.push_back(the_case.exponents);
      memory.push_back(std::make_unique<Memory>(host.back(), random() % 4));
      memory.push_back(std::make_unique<Memory>(the_case.exponent_bytes()));
      sources.push_back({memory[memory.size() - 2]->data(), as<std::int32_t>(*memory.back())});
    }
  }
  std::vector<const std::byte*> planes_of(const Case& the_case, std::int64_t s) const {
    std::vector<const std::byte*> planes;
    for (const auto& one : host) {
      planes.push_back(one.data() + static_cast<std::size_t>(s) * the_case.stripes.pitch);
    }
    return planes;
  }
};

TEST(TwobitOnDevice, AddsAndCountsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Random random(seed);
    const std::size_t n = random_codes_length(seed, random);
    Case the_case(seed, static_cast<std::int64_t>(n), random);
    SCOPED_TRACE(the_case.words);
    const Parts parts(the_case, seed % 4, random);
    Memory sums(n * sizeof(float));
    Memory counts(n, seed % 3);
    std::vector<std::byte> expected_sums(sums.size());
    std::vector<std::byte> expected_counts(n);
    for (std::int64_t s = 0; s < the_case.count(); ++s) {
      const auto first = static_cast<std::size_t>(s * the_case.stripes.stripe);
      const auto planes = parts.planes_of(the_case, s);
      std::vector<kernels::TwobitPart> ranks;
      for (std::size_t r = 0; r < planes.size(); ++r) {
        ranks.push_back({planes[r], parts.host_exponents[r][static_cast<std::size_t>(s)]});
      }
      kernels::ref::twobit_sum(ranks, the_case.size(s), expected_sums.data() + first * sizeof(float));
      kernels::ref::twobit_count(planes, the_case.size(s), expected_counts.data() + first);
    }
    ASSERT_TRUE(device::kernels().twobit_sum({the_case.stripes, parts.sources, sums.data()}, nullptr).ok());
    ASSERT_TRUE(device::kernels().twobit_count({the_case.stripes, parts.sources, counts.data()}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected_sums, sums.copy()), "");
    EXPECT_EQ(Gradient::first_difference(expected_counts, counts.copy()), "");
  }
}

TEST(TwobitOnDevice, MakesNumbersOfCountsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Random random(seed);
    const std::size_t n = random_codes_length(seed, random);
    const Case the_case(seed, static_cast<std::int64_t>(n), random);
    SCOPED_TRACE(the_case.words);
    kernels::Array counts(n, 0);
    kernels::fill(DType::kI8, counts, random);
    Memory device_counts(counts, 1);
    Memory exponents(the_case.exponent_bytes());
    Memory out(n * sizeof(float));
    std::vector<std::byte> expected(out.size());
    for (std::int64_t s = 0; s < the_case.count(); ++s) {
      const auto first = static_cast<std::size_t>(s * the_case.stripes.stripe);
      kernels::ref::twobit_from_counts(the_case.exponents[static_cast<std::size_t>(s)], the_case.size(s),
                                       counts.data() + first, expected.data() + first * sizeof(float));
    }
    const kernels::cuda::TwobitFromCounts args{the_case.stripes, as<std::int32_t>(exponents), device_counts.data(),
                                               out.data()};
    ASSERT_TRUE(device::kernels().twobit_from_counts(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(TwobitOnDevice, RefusesStripesThatOverlapOrCutRecords) {
  Memory memory(4096);
  const auto sum = [&](const TwobitStripes& stripes) {
    return device::kernels().twobit_sum({stripes, {}, memory.data()}, nullptr).ok();
  };
  EXPECT_TRUE(sum({1000, 1024, 0}));
  EXPECT_FALSE(sum({1000, 1000, 1000}));
  EXPECT_FALSE(sum({2000, 1024, 255}));
  EXPECT_FALSE(sum({-1, 1024, 256}));
  EXPECT_FALSE(sum({10, 0, 256}));
}

}  // namespace
}  // namespace sirtaki::device
