#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/half/half.h"
#include "kernels/target.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/arrays.h"

namespace sirtaki::kernels {
namespace {

template <class T>
std::vector<T> reduced(ReduceOp op, DType dtype, const std::vector<std::vector<T>>& in) {
  std::vector<const std::byte*> sources;
  for (const auto& source : in) {
    sources.push_back(reinterpret_cast<const std::byte*>(source.data()));
  }
  std::vector<T> out(in[0].size());
  reduce(op, dtype, sources, reinterpret_cast<std::byte*>(out.data()), static_cast<std::int64_t>(out.size()));
  return out;
}

std::vector<Array> random_sources(DType dtype, std::size_t count, std::size_t n, Random& random) {
  std::vector<Array> sources;
  for (std::size_t s = 0; s < count; ++s) {
    sources.emplace_back(n * dtype_size(dtype), random());
    fill(dtype, sources.back(), random);
  }
  return sources;
}

std::vector<const std::byte*> pointers(const std::vector<Array>& arrays) {
  std::vector<const std::byte*> all;
  for (const Array& array : arrays) {
    all.push_back(array.data());
  }
  return all;
}

void expect_same_as_reference(ReduceOp op, DType dtype, std::size_t n, Random& random) {
  const std::size_t count = 1 + random() % 5;
  std::vector<Array> sources = random_sources(dtype, count, n, random);
  Array expected(n * dtype_size(dtype), 0);
  ref::reduce(op, dtype, pointers(sources), expected.data(), static_cast<std::int64_t>(n));
  Array out(n * dtype_size(dtype), random());
  reduce(op, dtype, pointers(sources), out.data(), static_cast<std::int64_t>(n));
  ASSERT_EQ(out.copy(), expected.copy());
  ASSERT_TRUE(out.guards_intact());
  Array& in_place = sources[random() % count];
  reduce(op, dtype, pointers(sources), in_place.data(), static_cast<std::int64_t>(n));
  ASSERT_EQ(in_place.copy(), expected.copy());
  ASSERT_TRUE(in_place.guards_intact());
}

TEST(Reduce, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const DType dtype : all_dtypes()) {
      for (int op = 0; op < kElementwiseOpCount; ++op) {
        for (std::uint64_t seed = 0; seed < 12; ++seed) {
          SCOPED_TRACE(target + " " + std::string(dtype_name(dtype)) + " op " + std::to_string(op) + " seed " +
                       std::to_string(seed));
          Random random(seed);
          const std::size_t n = seed < 4 ? random() % 8 : random() % 700;
          ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(static_cast<ReduceOp>(op), dtype, n, random));
        }
      }
    }
  });
}

TEST(Reduce, IsTheReferenceForEveryPairOfAHalfWithAnother) {
  on_every_target([](const std::string& target) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(target + " " + std::string(dtype_name(dtype)));
      Random random(7);
      std::vector<Array> sources = random_sources(dtype, 2, kHalves, random);
      for (std::size_t i = 0; i < kHalves; ++i) {
        const auto half = static_cast<std::uint16_t>(i);
        std::memcpy(sources[0].data() + 2 * i, &half, 2);
      }
      for (int op = 0; op < kElementwiseOpCount; ++op) {
        Array expected(2 * kHalves, 0);
        Array out(2 * kHalves, 3);
        ref::reduce(static_cast<ReduceOp>(op), dtype, pointers(sources), expected.data(), kHalves);
        reduce(static_cast<ReduceOp>(op), dtype, pointers(sources), out.data(), kHalves);
        ASSERT_EQ(out.copy(), expected.copy()) << "op " << op;
      }
    }
  });
}

std::vector<std::uint16_t> averaged(DType dtype, const std::vector<std::vector<std::uint16_t>>& in, double count) {
  std::vector<const std::byte*> sources;
  for (const auto& source : in) {
    sources.push_back(reinterpret_cast<const std::byte*>(source.data()));
  }
  std::vector<std::uint16_t> out(in[0].size());
  average(dtype, sources, reinterpret_cast<std::byte*>(out.data()), static_cast<std::int64_t>(out.size()), count);
  return out;
}

TEST(Average, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const DType dtype : all_dtypes()) {
      for (std::uint64_t seed = 0; dtype != DType::kBool && seed < 12; ++seed) {
        SCOPED_TRACE(target + " " + std::string(dtype_name(dtype)) + " seed " + std::to_string(seed));
        Random random(seed);
        const auto n = static_cast<std::int64_t>(seed < 4 ? random() % 8 : random() % 700);
        const std::vector<Array> sources = random_sources(dtype, 1 + random() % 5, static_cast<std::size_t>(n), random);
        const std::size_t bytes = static_cast<std::size_t>(n) * dtype_size(dtype);
        const auto count = static_cast<double>(1 + random() % 7);
        Array expected(bytes, 0);
        ref::average(dtype, pointers(sources), expected.data(), n, count);
        Array out(bytes, random());
        average(dtype, pointers(sources), out.data(), n, count);
        ASSERT_EQ(out.copy(), expected.copy());
        ASSERT_TRUE(out.guards_intact());
      }
    }
  });
}

TEST(Average, OfHalvesFitsWhereTheSumDoesNot) {
  const std::uint16_t big = f32_to_f16(40000.0F);
  EXPECT_EQ(averaged(DType::kF16, {{big}, {big}}, 2), std::vector<std::uint16_t>{big});
  EXPECT_EQ(averaged(DType::kF16, {{1}, {1}, {1}}, 3), std::vector<std::uint16_t>{1}) << "the smallest number";
  EXPECT_EQ(averaged(DType::kF16, {{big}}, 0.5), std::vector<std::uint16_t>{0x7C00}) << "one that does not fit";
}

TEST(Average, RoundsHalvesOnce) {
  // (2048 + 1) / 3 = 683; rounded to 2048 before the division it would be 682.5.
  EXPECT_EQ(averaged(DType::kF16, {{0x6800}, {0x3C00}}, 3), std::vector<std::uint16_t>{f32_to_f16(683.0F)});
}

TEST(Reduce, AddsInTheOrderOfTheSources) {
  const std::vector<std::vector<float>> in = {{1e8F}, {-1e8F}, {1.0F}};
  EXPECT_EQ(reduced(ReduceOp::kSum, DType::kF32, in), std::vector<float>{1.0F});
  const std::vector<std::vector<float>> other = {{1.0F}, {1e8F}, {-1e8F}};
  EXPECT_EQ(reduced(ReduceOp::kSum, DType::kF32, other), std::vector<float>{0.0F});
}

TEST(Reduce, RoundsHalvesOnceAtTheEnd) {
  // 2048 + 1 is a tie that rounds back to 2048 in float16; kept in float32, the two ones count.
  const std::vector<std::vector<std::uint16_t>> in = {{0x6800}, {0x3C00}, {0x3C00}};
  EXPECT_EQ(reduced(ReduceOp::kSum, DType::kF16, in), std::vector<std::uint16_t>{0x6801});
  // The same with 256 in bfloat16.
  const std::vector<std::vector<std::uint16_t>> brain = {{0x4380}, {0x3F80}, {0x3F80}};
  EXPECT_EQ(reduced(ReduceOp::kSum, DType::kBF16, brain), std::vector<std::uint16_t>{0x4381});
}

TEST(Reduce, WrapsIntegers) {
  EXPECT_EQ(reduced<std::int8_t>(ReduceOp::kSum, DType::kI8, {{127}, {1}}), std::vector<std::int8_t>{-128});
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::kProduct, DType::kI32, {{1 << 30}, {6}}),
            std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min()});
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::kSum, DType::kI64, {{big}, {1}}),
            std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min()});
}

TEST(Reduce, MinAndMaxKnowSignedFromUnsigned) {
  EXPECT_EQ(reduced<std::int8_t>(ReduceOp::kMin, DType::kI8, {{-1}, {1}}), std::vector<std::int8_t>{-1});
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::kMin, DType::kU8, {{255}, {1}}), std::vector<std::uint8_t>{1});
  EXPECT_EQ(reduced<std::int16_t>(ReduceOp::kMax, DType::kI16, {{-1}, {1}}), std::vector<std::int16_t>{1});
  EXPECT_EQ(reduced<std::uint16_t>(ReduceOp::kMax, DType::kU16, {{65535}, {1}}), std::vector<std::uint16_t>{65535});
}

TEST(Reduce, LetsANanWinFromAnySource) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    for (std::size_t where = 0; where < 3; ++where) {
      std::vector<std::vector<float>> in = {{1.0F}, {2.0F}, {3.0F}};
      in[where][0] = -nan;
      const auto out = reduced(op, DType::kF32, in);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out[0]), 0x7FC00000U) << "source " << where;
    }
  }
}

TEST(Reduce, TakesBoolsAsTruth) {
  const std::vector<std::vector<std::uint8_t>> in = {{0, 0, 1, 2}, {0, 1, 0, 1}};
  const std::vector<std::uint8_t> any = {0, 1, 1, 1};
  const std::vector<std::uint8_t> all = {0, 0, 0, 1};
  EXPECT_EQ(reduced(ReduceOp::kSum, DType::kBool, in), any);
  EXPECT_EQ(reduced(ReduceOp::kMax, DType::kBool, in), any);
  EXPECT_EQ(reduced(ReduceOp::kProduct, DType::kBool, in), all);
  EXPECT_EQ(reduced(ReduceOp::kMin, DType::kBool, in), all);
}

TEST(Reduce, DoesNothingForNoElements) {
  const std::byte* none = nullptr;
  reduce(ReduceOp::kSum, DType::kF32, {&none, 1}, nullptr, 0);
  EXPECT_THROW(reduce(ReduceOp::kSum, DType::kF32, {}, nullptr, 0), BugError);
}

TEST(Target, HasTheNameOfTheBestSupportedOne) {
  std::vector<std::string> names;
  on_every_target([&names](const std::string& target) {
    EXPECT_EQ(chosen_target(), target);
    names.push_back(target);
  });
  EXPECT_EQ(chosen_target(), names.front());
}

}  // namespace
}  // namespace sirtaki::kernels
