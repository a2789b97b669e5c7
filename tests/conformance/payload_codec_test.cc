// Properties of every codec with payloads, for all parameters: results and residuals add up to the gradient, and no
// payload causes invalid accesses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compression/codec_state.h"
#include "compression/codecs/catalog.h"
#include "runtime/base/config/compression_spec.h"

namespace sirtaki::compression {
namespace {

using Random = std::mt19937_64;
using Floats = std::vector<float>;
using Values = std::vector<std::int64_t>;

constexpr auto kF16 = static_cast<std::int64_t>(DType::kF16);
constexpr auto kBF16 = static_cast<std::int64_t>(DType::kBF16);
constexpr auto kF32 = static_cast<std::int64_t>(DType::kF32);

// Parameters with feedback, without momentum correction: it changes what is compressed. A codec without rows here is
// tested with its keys (runtime/base/codecs.inc) at their defaults, and with each key at its least and its most.
const std::multimap<std::string, Values, std::less<>> kParams = {
    {"int8", {1, 1}},
    {"int8", {1, 256}},
    {"int8", {1, 65536}},
    {"int4", {1, 1}},
    {"int4", {1, 7}},
    {"int4", {1, 256}},
    {"int4", {1, 65536}},
    {"fp8_e4m3", {1, 32}},
    {"fp8_e4m3", {1, 300}},
    {"fp8_e5m2", {1, 7}},
    {"fp8_e5m2", {1, 64}},
    // Factors 1, 3 and 1/16, of the mean of all elements and of each block.
    {"twobit", {1, params::kOne, 0}},
    {"twobit", {1, 3 * params::kOne, 0}},
    {"twobit", {1, params::kOne, 1}},
    {"twobit", {1, params::kOne / 16, 1}},
    {"onebit", {1, 64}},
    {"onebit", {1, 1024}},
    {"onebit", {1, 65536}},
    {"group_topk", {1, 512, 5, kF32, 0, 0}},
    {"group_topk", {1, 100, 1, kF16, 0, 0}},
    {"group_topk", {1, 1, 1, kBF16, 0, 0}},
    {"group_topk", {1, 3000, 40, kBF16, 0, 0}},
    // 1 %, 25 % and 5 %; thresholds estimated sometimes, always, rarely.
    {"threshold_sparse", {1, 655, 32, kF32, 0, 0}},
    {"threshold_sparse", {1, 16384, 1, kF16, 0, 0}},
    {"threshold_sparse", {1, 3277, 1000, kBF16, 0, 0}},
    {"kernel_sparse", {1, 0, 1, kF32}},
    {"kernel_sparse", {1, 0, 3, kF16}},
    {"kernel_sparse", {1, 0, 8, kBF16}},
    {"block_topk", {1, 64, 1}},
    {"block_topk", {1, 1000, 4}},
    {"powersgd", {1, 1, 1}},
    {"powersgd", {1, 4, 0}},
};

// Relative error of the sum of sent and residual; other codecs are exact.
const std::map<std::string, double, std::less<>> kRounding = {{"onebit", 0x1p-25}, {"powersgd", 0x1p-24}};

struct Case {
  const PayloadCodec* codec;
  Values params;
};

std::vector<Values> params_of_keys(std::string_view codec) {
  const Method defaults = method_of(*find_method(codec));
  std::set<Values> all = {plain_params(defaults)};
  for (const KeyInfo& key : defaults.info->own_keys()) {
    for (const std::int64_t value : {key.least, key.most}) {
      Method method = defaults;
      method.set(key.name, value);
      all.insert(plain_params(method));
    }
  }
  return {all.begin(), all.end()};
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const PayloadCodec* codec : payload_codecs()) {
    const auto [begin, end] = kParams.equal_range(codec->name());
    for (auto row = begin; row != end; ++row) {
      all.push_back({codec, row->second});
    }
    if (begin == end) {
      for (Values& values : params_of_keys(codec->name())) {
        all.push_back({codec, std::move(values)});
      }
    }
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name(info.param.codec->name());
  for (const std::int64_t value : info.param.params) {
    name.append("_").append(std::to_string(value));
  }
  return name;
}

// Whole rows of 8 if possible.
constexpr std::int64_t kSizes[] = {1, 2, 7, 63, 256, 1000, 4097, 33000};

enum class Kind { kNormal, kZeros, kDenormal, kHuge, kOutlier, kMixed };
constexpr Kind kKinds[] = {Kind::kNormal, Kind::kZeros, Kind::kDenormal, Kind::kHuge, Kind::kOutlier, Kind::kMixed};

float element(Kind kind, float huge, Random& random) {
  const float uniform = static_cast<float>(random() % (1U << 24)) * 0x1p-23F - 1.0F;
  switch (kind) {
    case Kind::kZeros:
      return random() % 2 == 0 ? 0.0F : -0.0F;
    case Kind::kDenormal:
      return uniform * 0x1p-126F;
    case Kind::kHuge:
      return uniform * huge;
    case Kind::kOutlier:
      return random() % 997 == 0 ? uniform * 1000.0F : uniform * 0x1p-20F;
    case Kind::kMixed:
      return std::ldexp(uniform, static_cast<int>(random() % 40) - 30);
    default:
      return uniform * std::fabs(uniform);
  }
}

template <class T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

double squares(const Floats& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return sum;
}

class PayloadCodecConformance : public testing::TestWithParam<Case> {
 protected:
  const PayloadCodec& codec() const { return *GetParam().codec; }

  static Shape shape_of(std::int64_t numel) { return {.numel = numel, .rows = numel % 8 == 0 ? 8 : 1}; }

  Values params_for(const Shape& shape, bool feedback) const {
    Values values = GetParam().params;
    values[params::kFeedback] = feedback ? 1 : 0;
    // Keeps as many blocks as there are.
    if (codec().id() == CodecId::kKernelSparse) {
      values[params::kFilters] = std::min(values[params::kFilters], shape.rows);
    }
    if (codec().id() == CodecId::kBlockTopk) {
      const std::int64_t blocks = (shape.numel + values[params::kBlock] - 1) / values[params::kBlock];
      values[params::kFilters] = std::min(values[params::kFilters], blocks);
    }
    EXPECT_TRUE(codec().check(values, shape).ok()) << codec().check(values, shape).text();
    return values;
  }

  CodecState memory_of(std::int64_t numel, bool feedback = true, int ranks = 4) const {
    const Shape shape = shape_of(numel);
    Values values = params_for(shape, feedback);
    const std::int64_t stripe = codec().stripe(values, shape, ranks);
    return {codec(), std::move(values), shape, {.stripe = stripe, .ranks = ranks, .rank = 0}};
  }

  // Values of float16 are exact below 2^29.
  Floats gradient(std::int64_t numel, Kind kind, Random& random) const {
    const Values& values = GetParam().params;
    const bool half = values.size() > params::kValue && values[params::kValue] == static_cast<int>(DType::kF16);
    Floats out(static_cast<std::size_t>(numel));
    for (float& value : out) {
      value = element(kind, half ? 1e6F : 0x1p120F, random);
    }
    return out;
  }

  // Encodes the whole tensor in pieces of `stripes` stripes, 0: one piece. Returns the payloads, one after the other.
  static std::vector<std::byte> encode(CodecState& memory, Floats& gradient, std::int64_t stripes = 0) {
    const std::int64_t numel = memory.shape().numel;
    const std::int64_t size = stripes == 0 ? numel : stripes * memory.ownership().stripe;
    std::vector<std::byte> all;
    if (memory.coder().wants_whole()) {
      memory.coder().begin(memory.feedback(bytes(gradient), 0));
    }
    for (std::int64_t offset = 0; offset < numel; offset += size) {
      const Piece piece{offset, std::min(size, numel - offset)};
      std::vector<std::byte> payload(memory.coder().payload_bytes(piece.numel), std::byte{0xEE});
      memory.coder().encode(piece, memory.feedback(bytes(gradient) + offset * 4, offset), payload);
      EXPECT_TRUE(memory.coder().check(piece, payload).ok());
      all.insert(all.end(), payload.begin(), payload.end());
    }
    return all;
  }

  static Floats sum(const CodecState& memory, const std::vector<const std::byte*>& payloads, std::int64_t stripes = 0) {
    const auto coder = memory.codec().open(memory.params(), memory.shape());
    const std::int64_t numel = memory.shape().numel;
    const std::int64_t size = stripes == 0 ? numel : stripes * memory.ownership().stripe;
    Floats out(static_cast<std::size_t>(numel), 77.0F);
    std::vector<const std::byte*> at = payloads;
    for (std::int64_t offset = 0; offset < numel; offset += size) {
      const Piece piece{offset, std::min(size, numel - offset)};
      coder->sum(piece, at, bytes(out) + offset * 4);
      for (const std::byte*& payload : at) {
        payload += coder->payload_bytes(piece.numel);
      }
    }
    return out;
  }

  static Floats residual(const CodecState& memory) {
    Floats out(static_cast<std::size_t>(memory.shape().numel));
    memory.residual(bytes(out));
    return out;
  }

  void expect_conserved(const Floats& a, const Floats& sent, const Floats& left) const {
    const auto rounding = kRounding.find(codec().name());
    for (std::size_t i = 0; i < a.size(); ++i) {
      // float64 is exact if the sum is a float32.
      const double whole = static_cast<double>(sent[i]) + static_cast<double>(left[i]);
      const double miss = std::abs(whole - static_cast<double>(a[i]));
      const double allowed =
          rounding == kRounding.end() ? 0.0 : rounding->second * std::max(std::fabs(sent[i]), std::fabs(left[i]));
      ASSERT_LE(miss, allowed) << "element " << i << ": " << sent[i] << " and " << left[i] << " of " << a[i];
    }
  }
};

TEST_P(PayloadCodecConformance, LosesNothing) {
  for (const std::int64_t numel : kSizes) {
    for (const Kind kind : kKinds) {
      SCOPED_TRACE("elements " + std::to_string(numel) + " kind " + std::to_string(static_cast<int>(kind)));
      Random random(static_cast<std::uint64_t>(numel));
      CodecState memory = memory_of(numel);
      for (int step = 0; step < 12; ++step) {
        Floats g = gradient(numel, kind, random);
        Floats a = residual(memory);
        for (std::size_t i = 0; i < a.size(); ++i) {
          a[i] += g[i];
        }
        const std::vector<std::byte> payload = encode(memory, g);
        ASSERT_NO_FATAL_FAILURE(expect_conserved(a, sum(memory, {payload.data()}), residual(memory)))
            << "step " << step;
      }
    }
  }
}

TEST_P(PayloadCodecConformance, FillsExactlyThePayloadItAnnounces) {
  for (const std::int64_t numel : kSizes) {
    SCOPED_TRACE("elements " + std::to_string(numel));
    Random random(3);
    Floats g = gradient(numel, Kind::kMixed, random);
    std::vector<std::byte> results[2];
    for (int fill = 0; fill < 2; ++fill) {
      CodecState memory = memory_of(numel);
      const std::size_t size = memory.coder().payload_bytes(numel);
      ASSERT_EQ(size, codec().payload_bytes(memory.params(), memory.shape(), numel));
      std::vector<std::byte>& payload = results[fill];
      payload.assign(size + 16, static_cast<std::byte>(0x11 * (fill + 1)));
      memory.coder().begin(memory.feedback(bytes(g), 0));
      memory.coder().encode({0, numel}, memory.feedback(bytes(g), 0), Bytes(payload).first(size));
      EXPECT_EQ(std::count(payload.end() - 16, payload.end(), static_cast<std::byte>(0x11 * (fill + 1))), 16);
      payload.resize(size);
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_P(PayloadCodecConformance, SendsTheSameInPiecesAsInOne) {
  for (const std::int64_t numel : kSizes) {
    for (const std::int64_t stripes : {1, 2, 3}) {
      SCOPED_TRACE("elements " + std::to_string(numel) + " stripes " + std::to_string(stripes));
      Random random(4);
      CodecState whole = memory_of(numel);
      CodecState cut = memory_of(numel);
      for (int step = 0; step < 4; ++step) {
        Floats g = gradient(numel, Kind::kNormal, random);
        const std::vector<std::byte> one = encode(whole, g);
        const std::vector<std::byte> many = encode(cut, g, stripes);
        ASSERT_EQ(sum(whole, {one.data()}), sum(cut, {many.data()}, stripes));
        ASSERT_EQ(residual(whole), residual(cut));
      }
    }
  }
}

TEST_P(PayloadCodecConformance, HasStripesThatDoNotDependOnWhoAsks) {
  for (const std::int64_t numel : kSizes) {
    const Shape shape = shape_of(numel);
    const Values values = params_for(shape, true);
    for (const int ranks : {1, 2, 3, 4, 64}) {
      const std::int64_t stripe = codec().stripe(values, shape, ranks);
      EXPECT_GE(stripe, 1);
      EXPECT_EQ(stripe, codec().stripe(values, shape, ranks));
      // Several owners share a tensor.
      EXPECT_LE(stripe, codec().supports(ReductionKind::kScatter) ? 2 * 65536 : numel);
    }
  }
}

TEST_P(PayloadCodecConformance, SumsInTheOrderOfTheRanks) {
  for (const std::size_t ranks : {1, 2, 3, 4}) {
    for (const std::int64_t numel : kSizes) {
      SCOPED_TRACE("ranks " + std::to_string(ranks) + " elements " + std::to_string(numel));
      Random random(ranks);
      std::vector<std::vector<std::byte>> payloads;
      std::vector<const std::byte*> pointers;
      Floats expected(static_cast<std::size_t>(numel), 0.0F);
      const CodecState reader = memory_of(numel);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        CodecState memory = memory_of(numel);
        Floats g = gradient(numel, Kind::kMixed, random);
        payloads.push_back(encode(memory, g));
        const Floats own = sum(reader, {payloads.back().data()});
        for (std::size_t i = 0; i < own.size(); ++i) {
          expected[i] += own[i];
        }
      }
      for (const auto& payload : payloads) {
        pointers.push_back(payload.data());
      }
      ASSERT_EQ(sum(reader, pointers), expected);
    }
  }
}

TEST_P(PayloadCodecConformance, WithoutFeedbackSendsTheSameAndHasNoResidual) {
  for (const std::int64_t numel : kSizes) {
    SCOPED_TRACE("elements " + std::to_string(numel));
    Random random(6);
    Floats g = gradient(numel, Kind::kNormal, random);
    CodecState with = memory_of(numel);
    CodecState without = memory_of(numel, false);
    EXPECT_EQ(encode(with, g), encode(without, g));
    EXPECT_TRUE(without.empty());
  }
}

// A caller that may have to undo a step has the residual written over the gradient, or elsewhere.
TEST_P(PayloadCodecConformance, LeavesTheSameWhereverThatGoes) {
  for (const std::int64_t numel : kSizes) {
    SCOPED_TRACE("elements " + std::to_string(numel));
    Random random(10);
    const Floats g = gradient(numel, Kind::kNormal, random);
    const Floats residual = gradient(numel, Kind::kMixed, random);
    std::vector<std::byte> payloads[3];
    Floats rests[3];
    for (std::size_t place = 0; place < 3; ++place) {
      const CodecState memory = memory_of(numel);
      const auto coder = codec().open(memory.params(), memory.shape());
      Floats from = g;
      Floats old = residual;
      Floats apart(g.size());
      Floats& left = place == 0 ? old : place == 1 ? from : apart;
      const kernels::Feedback arrays{.gradient = bytes(from), .residual = bytes(old), .left = bytes(left)};
      coder->begin(arrays);
      payloads[place].resize(coder->payload_bytes(numel));
      coder->encode({0, numel}, arrays, payloads[place]);
      rests[place] = left;
      EXPECT_TRUE(place == 0 || old == residual);
      EXPECT_TRUE(place == 1 || from == g);
    }
    EXPECT_EQ(payloads[1], payloads[0]);
    EXPECT_EQ(payloads[2], payloads[0]);
    EXPECT_EQ(rests[1], rests[0]);
    EXPECT_EQ(rests[2], rests[0]);
  }
}

TEST_P(PayloadCodecConformance, LooksAtTheWholeOnlyWhereItWantsTo) {
  Random random(9);
  CodecState without = memory_of(4097);
  CodecState with = memory_of(4097);
  if (!with.coder().wants_whole()) {
    for (int step = 0; step < 3; ++step) {
      Floats g = gradient(4097, Kind::kNormal, random);
      with.coder().begin(with.feedback(bytes(g), 0));
      ASSERT_EQ(encode(with, g), encode(without, g));
    }
  }
}

TEST_P(PayloadCodecConformance, LeavesLessThanItWasGiven) {
  for (const std::int64_t numel : kSizes) {
    SCOPED_TRACE("elements " + std::to_string(numel));
    for (const Kind kind : {Kind::kNormal, Kind::kHuge, Kind::kOutlier, Kind::kMixed}) {
      Random random(7);
      CodecState memory = memory_of(numel);
      Floats g = gradient(numel, kind, random);
      encode(memory, g);
      EXPECT_LT(squares(residual(memory)), squares(g)) << "kind " << static_cast<int>(kind);
    }
  }
}

// Once gradients are zero, the residual is sent in the end.
TEST_P(PayloadCodecConformance, SendsEverythingInTheEnd) {
  Random random(8);
  const std::int64_t numel = 4096;
  CodecState memory = memory_of(numel);
  Floats g = gradient(numel, Kind::kNormal, random);
  const double before = squares(g);
  for (int step = 0; step < 400; ++step) {
    encode(memory, g);
    std::fill(g.begin(), g.end(), 0.0F);
  }
  EXPECT_LT(squares(residual(memory)), 0.01 * before);
}

// Relies on the address sanitizer: any payload that passes check() can be summed.
TEST_P(PayloadCodecConformance, RefusesOrSurvivesCorruptPayloads) {
  for (const std::int64_t numel : {1, 7, 63, 1000, 4097}) {
    Random random(static_cast<std::uint64_t>(numel));
    CodecState memory = memory_of(numel);
    Floats g = gradient(numel, Kind::kNormal, random);
    const std::vector<std::byte> good = encode(memory, g);
    for (int number = 0; number < 300; ++number) {
      SCOPED_TRACE("elements " + std::to_string(numel) + " number " + std::to_string(number));
      std::vector<std::byte> bad = good;
      for (std::uint64_t times = 1 + random() % 4; times > 0 && number % 4 != 0; --times) {
        bad[random() % bad.size()] ^= static_cast<std::byte>(1U << (random() % 8));
      }
      if (number % 4 == 0) {
        std::generate(bad.begin(), bad.end(), [&random] { return static_cast<std::byte>(random()); });
      }
      const Status status = memory.coder().check({0, numel}, bad);
      if (status.ok()) {
        sum(memory, {bad.data(), good.data()});
      } else {
        ASSERT_EQ(status.code(), Code::kCorrupt);
        ASSERT_FALSE(status.text().empty());
      }
    }
  }
}

TEST_P(PayloadCodecConformance, NamesWhatIsWrongWithParameters) {
  const Shape shape = shape_of(4096);
  Values values = params_for(shape, true);
  values.push_back(0);
  const Status longer = codec().check(values, shape);
  EXPECT_EQ(longer.code(), Code::kInvalidArgument);
  EXPECT_NE(longer.text().find(codec().name()), std::string_view::npos);
  values.pop_back();
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const std::int64_t impossible : {std::int64_t{-1}, std::int64_t{1} << 62}) {
      Values wrong = values;
      wrong[i] = impossible;
      const Status status = codec().check(wrong, shape);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << "parameter " << i << " = " << impossible;
      EXPECT_NE(status.text().find(codec().name()), std::string_view::npos);
      EXPECT_NE(status.text().find(std::to_string(impossible)), std::string_view::npos);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, PayloadCodecConformance, testing::ValuesIn(all_cases()), case_name);

TEST(PayloadCodecCatalog, HasAReductionForEveryCodec) {
  for (const PayloadCodec* codec : payload_codecs()) {
    EXPECT_TRUE(codec->supports(ReductionKind::kGather) || codec->supports(ReductionKind::kShared) ||
                codec->supports(ReductionKind::kLowRank));
    EXPECT_FALSE(codec->supports(ReductionKind::kDense));
  }
}

}  // namespace
}  // namespace sirtaki::compression
