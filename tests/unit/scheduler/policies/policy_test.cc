#include "scheduler/policies/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/policies/codec_facts.h"

namespace sirtaki::scheduler {
namespace {

using Params = std::vector<std::int64_t>;

std::vector<TensorInfo> net() {
  return {{"conv1.weight", {32, 3, 3, 3}},
          {"conv2.weight", {256, 128, 3, 3}},
          {"bn.weight", {128}},
          {"fc.weight", {1000, 512}},
          {"fc.bias", {1000}},
          {"steps", {100, 100}, DType::kI64},
          {"empty", {0, 8}},
          {"long", {1 << 20}}};
}

std::vector<PlannedTensor> decided(const std::string& text, const std::vector<TensorInfo>& tensors,
                                   const Circumstances& at) {
  const PlainFacts facts(at.ranks);
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << spec.status().to_string();
  auto choices = decide(*spec, tensors, at, facts);
  EXPECT_TRUE(choices) << choices.status().to_string();
  return choices ? *choices : std::vector<PlannedTensor>();
}

PlannedTensor decided_one(const std::string& text, const TensorInfo& tensor, const Circumstances& at = {.ranks = 4}) {
  return decided(text, {tensor}, at).at(0);
}

TEST(Policy, CodecsByNameGetTheirDefaults) {
  const TensorInfo matrix{"w", {1024, 1024}};
  const auto f32 = static_cast<std::int64_t>(DType::kF32);
  const std::vector<std::pair<std::string, Decision>> cases = {
      {"none", {}},
      {"fp16", {CodecId::kFp16, ReductionKind::kDense, {}}},
      {"bf16", {CodecId::kBf16, ReductionKind::kDense, {}}},
      {"int8", {CodecId::kInt8, ReductionKind::kScatter, {1, 256}}},
      {"fp8_e4m3", {CodecId::kFp8E4M3, ReductionKind::kScatter, {1, 256}}},
      {"fp8_e5m2:block=64,ef=off", {CodecId::kFp8E5M2, ReductionKind::kScatter, {0, 64}}},
      {"onebit", {CodecId::kOnebit, ReductionKind::kScatter, {1, 1024}}},
      {"twobit", {CodecId::kTwobit, ReductionKind::kScatter, {1, 65536, 0}}},
      {"twobit:by=block,factor=0.5", {CodecId::kTwobit, ReductionKind::kScatter, {1, 32768, 1}}},
      {"group_topk", {CodecId::kGroupTopk, ReductionKind::kGather, {1, 512, 5, f32, 0, 0}}},
      {"threshold_sparse", {CodecId::kThresholdSparse, ReductionKind::kGather, {1, 655, 32, f32, 0, 0}}},
      {"kernel_sparse", {CodecId::kKernelSparse, ReductionKind::kGather, {1, 0, 256, f32}}},
      {"block_topk", {CodecId::kBlockTopk, ReductionKind::kShared, {1, 256, 41}}},
      {"powersgd", {CodecId::kPowerSgd, ReductionKind::kLowRank, {1, 2, 1}}},
  };
  for (const auto& [text, decision] : cases) {
    const PlannedTensor choice = decided_one(text, matrix);
    EXPECT_EQ(choice.decision, decision) << text << ": " << choice.reason;
    EXPECT_FALSE(choice.reason.empty());
  }
  const Decision corrected = decided_one("group_topk:momentum=0.5,nesterov=on,values=f16", matrix).decision;
  EXPECT_EQ(corrected.params, (Params{1, 512, 5, static_cast<std::int64_t>(DType::kF16), 32768, 1}));
}

TEST(Policy, WarmUpBeginsWhereItIsNoLongerThanADenseStep) {
  const TensorInfo matrix{"w", {1024, 1024}};
  const auto f32 = static_cast<std::int64_t>(DType::kF32);
  const auto params_of = [&](const std::string& text, int ranks) {
    return decided_one(text, matrix, {.ranks = ranks}).decision.params;
  };
  EXPECT_EQ(params_of("group_topk:warmup=100", 4), (Params{1, 512, 5, f32, 0, 0, 100, 128}));
  EXPECT_EQ(params_of("group_topk:warmup=100,wire=gather", 8), (Params{1, 512, 5, f32, 0, 0, 100, 64}));
  EXPECT_EQ(params_of("algc:warmup=7", 4), (Params{1, 655, 32, f32, 0, 0, 7, 8192}));
  EXPECT_EQ(params_of("threshold_sparse:warmup=7,momentum=0.5", 2), (Params{1, 655, 32, f32, 32768, 0, 7, 16384}));
  EXPECT_EQ(params_of("group_topk:warmup=100,rate=25%,wire=gather", 4), (Params{1, 512, 128, f32, 0, 0}));
  EXPECT_EQ(params_of("group_topk:warmup=0", 4), (Params{1, 512, 5, f32, 0, 0}));
  const PlannedTensor warm = decided_one("algc:warmup=7", matrix);
  EXPECT_NE(warm.reason.find("after 7 steps of warm-up"), std::string::npos) << warm.reason;
  EXPECT_EQ(warm.wire_bytes, decided_one("algc", matrix).wire_bytes);
}

TEST(Policy, ReasonsSayWhyATensorStaysDense) {
  const std::vector<PlannedTensor> choices = decided("twobit", net(), {.ranks = 4});
  const auto compressed = [&](std::size_t i) { return choices[i].decision.format().compressed(); };
  EXPECT_FALSE(compressed(0)) << "864 elements";
  EXPECT_NE(choices[0].reason.find("smaller than 16KiB"), std::string::npos) << choices[0].reason;
  EXPECT_TRUE(compressed(1));
  EXPECT_NE(choices[2].reason.find("1 dimensions, fewer than 2"), std::string::npos) << choices[2].reason;
  EXPECT_TRUE(compressed(3));
  EXPECT_NE(choices[5].reason.find("int64"), std::string::npos) << choices[5].reason;
  EXPECT_FALSE(compressed(6));
  EXPECT_FALSE(compressed(7));
  EXPECT_TRUE(decided("twobit:ndim=1", net(), {.ranks = 4})[7].decision.format().compressed());
  EXPECT_TRUE(decided("twobit:min=0,ndim=0", {{"s", {}}}, {.ranks = 4})[0].decision.format().compressed());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i].name, net()[i].name);
  }
}

TEST(Policy, TheGateIsAtFourThousandAndNinetySixElements) {
  EXPECT_FALSE(decided_one("hylo", {"w", {63, 65}}).decision.format().compressed()) << 63 * 65;
  EXPECT_TRUE(decided_one("hylo", {"w", {64, 64}}).decision.format().compressed());
}

TEST(Policy, StaysDenseWhereThatIsNoLonger) {
  // 8 bits to seven others are as much as 32 bits in two halves.
  const Circumstances many = {.ranks = 8, .link = LinkFacts{1'000'000'000, 1'000'000'000}};
  const PlannedTensor choice = decided_one("int8", {"w", {64, 64}}, many);
  EXPECT_FALSE(choice.decision.format().compressed());
  EXPECT_NE(choice.reason.find("not larger"), std::string::npos);
  EXPECT_EQ(decided_one("int8:wire=gather", {"w", {64, 64}}, many).decision.reduction, ReductionKind::kGather)
      << "asked for by name";
  EXPECT_FALSE(decided_one("powersgd:rank=64", {"w", {64, 64}}).decision.format().compressed());
}

TEST(Policy, FirstMatchingRuleWins) {
  const std::vector<PlannedTensor> choices =
      decided("fc.weight=>int8;*.weight=>twobit;b?.*=>none", net(), {.ranks = 4});
  EXPECT_EQ(choices[1].decision.codec, CodecId::kTwobit);
  EXPECT_EQ(choices[3].decision.codec, CodecId::kInt8);
  EXPECT_EQ(choices[7].reason, "no rule matches");
  EXPECT_FALSE(choices[7].decision.format().compressed());
}

TEST(Policy, ARuleThatMatchesNothingIsAnError) {
  const PlainFacts facts(4);
  const auto choices = decide(*parse_spec("*.weight=>twobit;head.*=>int8"), net(), {.ranks = 4}, facts);
  ASSERT_FALSE(choices);
  EXPECT_EQ(choices.status().code(), Code::kInvalidArgument);
  for (const char* part : {"rule 2 'head.*=>int8'", "none of 8 tensors", "'conv1.weight'"}) {
    EXPECT_NE(choices.status().text().find(part), std::string_view::npos) << choices.status().text();
  }
  EXPECT_TRUE(decide(*parse_spec("twobit"), {}, {.ranks = 4}, facts)) << "no tensors, no rules";
}

TEST(Policy, HyloGivesConvolutionsFiltersAndMatricesTwoBits) {
  const std::vector<PlannedTensor> choices = decided("hylo", net(), {.ranks = 4});
  const Decision& conv = choices[1].decision;
  EXPECT_EQ(conv.codec, CodecId::kKernelSparse);
  // 294,912 elements: 0.25 * sqrt(4096 / 294912) = 2.9 %, so the least, 5 %: 13 of 256.
  EXPECT_EQ(conv.params[params::kFilters], 13);
  EXPECT_EQ(choices[3].decision.codec, CodecId::kTwobit);
  EXPECT_EQ(decided_one("hylo:wire=scatter", {"c", {64, 64, 3, 3}}).decision.reduction, ReductionKind::kGather)
      << "kernel_sparse has no other";
  EXPECT_EQ(decided_one("hylo:wire=scatter", {"m", {64, 64}}, {.ranks = 2}).decision.reduction,
            ReductionKind::kScatter);
}

// 13 of 256 filters of 4.6 kB: to each of seven others, or 2 * 7/8 times, with norms first and three rounds more.
TEST(Policy, FiltersAreSharedWhereThatIsShorterOnTheLink) {
  const TensorInfo conv{"c", {256, 128, 3, 3}};
  const auto reduction = [&](const Circumstances& at) {
    return decided_one("kernel_sparse:rate=5%", conv, at).decision.reduction;
  };
  EXPECT_EQ(reduction({.ranks = 8}), ReductionKind::kGather) << "each rank's own filters unless a link says more";
  EXPECT_EQ(reduction({.ranks = 8, .link = LinkFacts{1'000'000, 2'500'000}}), ReductionKind::kShared) << "20 Mbit/s";
  EXPECT_EQ(reduction({.ranks = 8, .link = LinkFacts{1'000'000, 1'250'000'000}}), ReductionKind::kGather)
      << "10 Gbit/s";
  EXPECT_EQ(reduction({.ranks = 2, .link = LinkFacts{1'000'000, 2'500'000}}), ReductionKind::kGather)
      << "one other rank";
  const Circumstances slow{.ranks = 8, .link = LinkFacts{1'000'000, 2'500'000}};
  EXPECT_EQ(decided_one("hylo", conv, slow).decision.reduction, ReductionKind::kGather) << "as it was published";
  EXPECT_EQ(decided_one("hylo:wire=shared", conv, slow).decision.reduction, ReductionKind::kShared);
  EXPECT_EQ(decided_one("kernel_sparse:rate=5%,values=f16", conv, slow).decision.reduction, ReductionKind::kGather)
      << "halves are not summed";
  EXPECT_EQ(decided_one("block_topk:wire=gather", conv).decision.reduction, ReductionKind::kGather) << "by name";
}

TEST(Policy, HyloRatesFollowTheFormula) {
  for (std::int64_t n = 4096; n < (std::int64_t{1} << 40); n = n * 5 / 4) {
    const double wanted = std::min(0.25, std::max(0.05, 0.25 * std::sqrt(4096.0 / static_cast<double>(n))));
    EXPECT_NEAR(static_cast<double>(hylo_rate(n, 16384)) / 65536, wanted, 1e-4) << n;
  }
  EXPECT_EQ(hylo_rate(1 << 30, 1000), 1000) << "rho below the least rate";
}

TEST(Policy, AlgcHasAGateThatGrowsWithTheLink) {
  const TensorInfo matrix{"w", {256, 256}};  // 256 KiB
  EXPECT_EQ(decided_one("algc", matrix).decision.codec, CodecId::kThresholdSparse);
  const Circumstances slow = {.ranks = 4, .link = LinkFacts{1'000'000, 12'500'000}};
  EXPECT_TRUE(decided_one("algc", matrix, slow).decision.format().compressed());
  const Circumstances wide = {.ranks = 4, .link = LinkFacts{1'000'000, 1'250'000'000}};
  EXPECT_FALSE(decided_one("algc", matrix, wide).decision.format().compressed()) << "1.25 MB in transit";
}

TEST(Policy, GathersWhatALinkHasInTransit) {
  EXPECT_EQ(gather_or_scatter(1 << 30, false, {.ranks = 2}), ReductionKind::kGather);
  EXPECT_EQ(gather_or_scatter(1, true, {.ranks = 4}), ReductionKind::kGather);
  EXPECT_EQ(gather_or_scatter(1, false, {.ranks = 4}), ReductionKind::kScatter);
  EXPECT_EQ(gather_or_scatter(1, true, {.ranks = 5}), ReductionKind::kScatter);
  // 1 Gbit/s and 0.1 ms: 12,500 bytes in transit; times P / ((P - 1) (P - 2)).
  const LinkFacts link{100'000, 125'000'000};
  EXPECT_EQ(gather_or_scatter(8'333, false, {.ranks = 4, .link = link}), ReductionKind::kGather);
  EXPECT_EQ(gather_or_scatter(8'334, true, {.ranks = 4, .link = link}), ReductionKind::kScatter);
  EXPECT_EQ(gather_or_scatter(2'381, false, {.ranks = 8, .link = link}), ReductionKind::kScatter);
  EXPECT_EQ(gather_or_scatter(2'380, false, {.ranks = 8, .link = link}), ReductionKind::kGather);
}

}  // namespace
}  // namespace sirtaki::scheduler
