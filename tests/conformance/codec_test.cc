// Properties of every codec of the catalog, for every dtype.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compression/codecs/catalog.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

using Memory = std::vector<std::byte>;

// Largest error of a decoded value, relative to the largest magnitude of its partition.
const std::map<std::string, double, std::less<>> kErrorBounds = {
    {"none", 0.0},
    {"fp16", 0x1p-11},
    {"bf16", 0x1p-8},
};

struct Case {
  const Codec* codec;
  DType dtype;
};

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const Codec* codec : codecs()) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      all.push_back({codec, static_cast<DType>(dtype)});
    }
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name(info.param.codec->name());
  return name.append("_").append(dtype_name(info.param.dtype));
}

class CodecConformance : public testing::TestWithParam<Case> {
 protected:
  const Codec& codec() const { return *GetParam().codec; }
  DType dtype() const { return GetParam().dtype; }

  // Returns floating values within 2^-10 .. 2, or any bits for other dtypes.
  Memory random_elements(std::size_t n, std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    Memory out(n * dtype_size(dtype()));
    for (std::size_t i = 0; i < n; ++i) {
      const double sign = random() % 2 == 0 ? 1.0 : -1.0;
      const double value = sign * std::ldexp(1.0 + static_cast<double>(random() % (1 << 20)) / (1 << 20),
                                             -static_cast<int>(random() % 11));
      const std::uint64_t bits = random();
      const auto single = static_cast<float>(value);
      const void* from = dtype() == DType::kF64   ? static_cast<const void*>(&value)
                         : dtype() == DType::kF32 ? static_cast<const void*>(&single)
                                                  : static_cast<const void*>(&bits);
      std::memcpy(out.data() + i * dtype_size(dtype()), from, dtype_size(dtype()));
    }
    return out;
  }

  Memory encoded(const Memory& elements) const {
    const auto n = static_cast<std::int64_t>(elements.size() / dtype_size(dtype()));
    Memory payload(codec().encoded_bytes(dtype(), n), std::byte{0xEE});
    codec().encode(dtype(), elements, payload);
    return payload;
  }

  Memory decoded(const Memory& payload, std::size_t size) const {
    Memory out(size, std::byte{0xEE});
    EXPECT_TRUE(codec().decode(dtype(), payload, out).ok());
    return out;
  }

  // Requires a floating dtype wider than a half.
  std::vector<double> values(const Memory& elements) const {
    std::vector<double> out(elements.size() / dtype_size(dtype()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (dtype() == DType::kF64) {
        std::memcpy(&out[i], elements.data() + 8 * i, 8);
      } else {
        float single = 0;
        std::memcpy(&single, elements.data() + 4 * i, 4);
        out[i] = single;
      }
    }
    return out;
  }
};

constexpr std::size_t kSizes[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 4097};

TEST_P(CodecConformance, StaysWithinItsErrorBound) {
  const auto bound = kErrorBounds.find(codec().name());
  ASSERT_NE(bound, kErrorBounds.end()) << "kErrorBounds in tests/conformance/codec_test.cc has no row for "
                                       << codec().name();
  for (const std::size_t n : kSizes) {
    SCOPED_TRACE("seed and elements " + std::to_string(n));
    const Memory elements = random_elements(n, n);
    const Memory out = decoded(encoded(elements), elements.size());
    if (!codec().handles(dtype()) || bound->second == 0.0) {
      ASSERT_EQ(out, elements);
      continue;
    }
    const std::vector<double> want = values(elements);
    const std::vector<double> got = values(out);
    double largest = 0;
    for (const double value : want) {
      largest = std::max(largest, std::abs(value));
    }
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_LE(std::abs(got[i] - want[i]), bound->second * largest) << "element " << i;
    }
  }
}

TEST_P(CodecConformance, FillsExactlyThePayloadItAnnounces) {
  for (const std::size_t n : kSizes) {
    const Memory elements = random_elements(n, n);
    const auto size = codec().encoded_bytes(dtype(), static_cast<std::int64_t>(n));
    // Encodes twice over different bytes: a byte that encode() leaves unwritten would differ.
    Memory one(size + 16, std::byte{0x11});
    Memory two(size + 16, std::byte{0x22});
    codec().encode(dtype(), elements, Bytes(one).first(size));
    codec().encode(dtype(), elements, Bytes(two).first(size));
    EXPECT_TRUE(std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(size), two.begin()));
    EXPECT_EQ(std::count(one.end() - 16, one.end(), std::byte{0x11}), 16);
    if (n > 0) {
      Memory small(size - 1);
      EXPECT_THROW(codec().encode(dtype(), elements, small), BugError);
    }
  }
  EXPECT_THROW(static_cast<void>(codec().encoded_bytes(dtype(), -1)), BugError);
}

TEST_P(CodecConformance, RefusesPayloadsOfAnotherSize) {
  const Memory elements = random_elements(100, 1);
  const Memory payload = encoded(elements);
  Memory out(elements.size());
  const Status shorter = codec().decode(dtype(), ConstBytes(payload).first(payload.size() - 1), out);
  EXPECT_EQ(shorter.code(), Code::kCorrupt);
  EXPECT_NE(shorter.text().find(codec().name()), std::string_view::npos);
  Memory longer = payload;
  longer.push_back(std::byte{0});
  EXPECT_EQ(codec().decode(dtype(), longer, out).code(), Code::kCorrupt);
}

TEST_P(CodecConformance, IsDeterministicAndDecodesAtAnyAlignment) {
  const Memory elements = random_elements(777, 5);
  const Memory payload = encoded(elements);
  EXPECT_EQ(encoded(elements), payload);
  const Memory out = decoded(payload, elements.size());
  for (std::size_t shift = 1; shift < 9; ++shift) {
    Memory from(elements.size() + shift);
    Memory wire(payload.size() + shift);
    Memory to(elements.size() + shift);
    std::memcpy(from.data() + shift, elements.data(), elements.size());
    codec().encode(dtype(), ConstBytes(from).subspan(shift), Bytes(wire).subspan(shift));
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), wire.begin() + static_cast<std::ptrdiff_t>(shift)));
    EXPECT_TRUE(codec().decode(dtype(), ConstBytes(wire).subspan(shift), Bytes(to).subspan(shift)).ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), to.begin() + static_cast<std::ptrdiff_t>(shift)));
  }
}

// Decoded values survive a second encoding unchanged: all ranks may apply the decoded bytes.
TEST_P(CodecConformance, KeepsWhatItDecoded) {
  const Memory elements = random_elements(777, 6);
  const Memory once = decoded(encoded(elements), elements.size());
  EXPECT_EQ(decoded(encoded(once), elements.size()), once);
}

TEST_P(CodecConformance, SendsUnhandledDtypesAsTheyAre) {
  if (codec().handles(dtype())) {
    return;
  }
  EXPECT_EQ(codec().wire_dtype(dtype()), dtype());
  const Memory elements = random_elements(100, 7);
  EXPECT_EQ(encoded(elements), elements);
}

TEST_P(CodecConformance, DecodesSumsOfSummablePayloadsToSums) {
  if (!codec().summable() || (dtype() != DType::kF32 && dtype() != DType::kF64)) {
    return;
  }
  constexpr std::size_t kCount = 500;
  const Memory a = random_elements(kCount, 8);
  const Memory b = random_elements(kCount, 9);
  const Memory payload_a = encoded(a);
  const Memory payload_b = encoded(b);
  ASSERT_EQ(payload_a.size(), kCount * dtype_size(codec().wire_dtype(dtype())));
  Memory sum(payload_a.size());
  const std::byte* sources[] = {payload_a.data(), payload_b.data()};
  kernels::reduce(ReduceOp::kSum, codec().wire_dtype(dtype()), sources, sum.data(), kCount);
  const std::vector<double> got = values(decoded(sum, a.size()));
  const std::vector<double> want_a = values(a);
  const std::vector<double> want_b = values(b);
  const double tolerance = 3 * kErrorBounds.at(std::string(codec().name())) * 4.0 + 1e-6;
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(got[i], want_a[i] + want_b[i], tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, CodecConformance, testing::ValuesIn(all_cases()), case_name);

TEST(CodecCatalog, HasUniqueIdsAndNames) {
  std::set<CodecId> ids;
  std::set<std::string_view> names;
  for (const Codec* codec : codecs()) {
    EXPECT_TRUE(ids.insert(codec->id()).second) << codec->name();
    EXPECT_TRUE(names.insert(codec->name()).second) << codec->name();
  }
  EXPECT_EQ(codecs().front()->id(), CodecId::kNone);
  EXPECT_EQ(codecs().front()->name(), "none");
}

}  // namespace
}  // namespace sirtaki::compression
