#include "runtime/engine/stream/plan/stream_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compression/codecs/catalog.h"

namespace sirtaki::engine {
namespace {

StreamSpec spec_of(const std::string& codec) {
  StreamSpec spec;
  spec.name = "s";
  spec.codec = codec;
  for (const auto& [name, dims] : {std::pair<std::string, std::vector<std::int64_t>>{"conv.weight", {64, 32, 3, 3}},
                                   {"fc.weight", {1000, 100}},
                                   {"fc.bias", {1000}}}) {
    StreamTensor tensor;
    tensor.name = name;
    tensor.dims = dims;
    spec.tensors.push_back(tensor);
  }
  spec.order.resize(spec.tensors.size());
  std::iota(spec.order.rbegin(), spec.order.rend(), 0);
  return spec;
}

Result<std::shared_ptr<const scheduler::Plan>> plan_of(const std::string& codec) {
  StreamSpec spec = spec_of(codec);
  SRT_TRY(read_compression(spec));
  return first_plan(spec, {}, CatalogFacts(4));
}

std::string rows_of(const scheduler::Plan& plan, std::span<const double> owed_norms) {
  JsonWriter json;
  write_tensors(json, spec_of("none"), plan, owed_norms);
  return std::move(json).take();
}

TEST(StreamPlan, RulesOfTheOptionsComeBeforeTheCodec) {
  Config config;
  EXPECT_EQ(compression_text(config), "none");
  config.compression.codec = "fp16";
  EXPECT_EQ(compression_text(config), "fp16");
  config.compression.rules = "fc*=>int8";
  EXPECT_EQ(compression_text(config), "fc*=>int8;*=>fp16");
  config.compression.codec = "conv*=>twobit";
  EXPECT_EQ(compression_text(config), "fc*=>int8;conv*=>twobit");
}

TEST(StreamPlan, EveryTensorFollowsItsRule) {
  const auto plan = plan_of("fc*=>int8;*=>fp16");
  ASSERT_TRUE(plan) << plan.status().to_string();
  const auto& tensors = (*plan)->tensors();
  EXPECT_EQ(tensors[0].decision.codec, CodecId::kFp16);
  EXPECT_EQ(tensors[1].decision.codec, CodecId::kInt8);
  EXPECT_EQ(tensors[1].decision.reduction, ReductionKind::kScatter);
  EXPECT_EQ(tensors[2].decision.codec, CodecId::kNone) << "a vector";
  EXPECT_EQ((*plan)->partitions().size(), 3U);
}

TEST(StreamPlan, EveryCodecOfTheCatalogHasAPlanByItsName) {
  for (const compression::PayloadCodec* codec : compression::payload_codecs()) {
    SCOPED_TRACE(codec->name());
    const auto plan = plan_of(std::string(codec->name()));
    ASSERT_TRUE(plan) << plan.status().to_string();
    EXPECT_EQ((*plan)->tensors()[1].decision.codec, codec->id()) << (*plan)->tensors()[1].reason;
  }
  EXPECT_TRUE(plan_of("hylo"));
  EXPECT_TRUE(plan_of("algc"));
}

TEST(StreamPlan, IfHostsSumFirstPayloadsCostAsMuchAsBetweenAsManyRanks) {
  const scheduler::TensorInfo tensor{"w", {512, 512}, DType::kF32};
  const CatalogFacts two(2);
  const CatalogFacts four_on_two(4, 2);
  for (const ReductionKind reduction :
       {ReductionKind::kGather, ReductionKind::kScatter, ReductionKind::kCounts, ReductionKind::kDense}) {
    const bool compressed = reduction != ReductionKind::kDense;
    const scheduler::Decision decision =
        compressed ? scheduler::Decision{CodecId::kTwobit, reduction, {1, params::kOne, 0}} : scheduler::Decision{};
    const auto alone = two.planned(tensor, decision);
    const auto by_host = four_on_two.planned(tensor, decision);
    ASSERT_TRUE(alone && by_host) << reduction_name(reduction);
    EXPECT_EQ(by_host->wire_bytes, alone->wire_bytes) << reduction_name(reduction);
  }
}

// Four ranks on hosts of three and one.
class Uneven final : public net::Collectives {
 public:
  net::Caps caps() const override { return {}; }
  Rank rank() const override { return 0; }
  int size() const override { return 4; }
  const net::HostGroups* host_groups() const override { return &groups_; }
  void start(net::CollectiveArgs /*args*/, Done /*done*/) override {}
  void cancel(net::TagGroup /*tags*/, Status /*cause*/) override {}
  void abort(Status /*cause*/) override {}

 private:
  net::HostGroups groups_ = {.hosts = net::Hosts({{0, 1, 2}, {3}}), .host = 0, .here = nullptr, .own = {}};
};

TEST(StreamPlan, TheFullestHostCounts) {
  const Uneven net;
  const CatalogFacts facts(net);
  EXPECT_EQ(facts.exchanging(), 2);
  EXPECT_EQ(facts.ranks_per_host(), 3) << "as many send all their data over one link";
  EXPECT_EQ(CatalogFacts(4).ranks_per_host(), 1);
}

TEST(StreamPlan, ErrorsNameTheStream) {
  for (const char* codec :
       {"int9", "head*=>int8", "threshold_sparse:wire=scatter", "kernel_sparse:wire=shared,values=f16,min=0"}) {
    const auto plan = plan_of(codec);
    ASSERT_FALSE(plan) << codec;
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
    EXPECT_NE(plan.status().text().find("stream 's'"), std::string_view::npos) << plan.status().text();
  }
}

TEST(StreamPlan, JsonListsTheWireFormatOfTensors) {
  const auto plan = plan_of("int8");
  ASSERT_TRUE(plan);
  const std::string json = rows_of(**plan, {});
  for (
      const char* part :
      {R"("name":"fc.weight","numel":100000,"dtype":"float32","codec":"int8","recipe":"scatter")",
       R"("params":[1,256],"density":1,"momentum":0,"held_bytes":400000)",
       R"("reason":"int8: 8 bits an element, by scatter")",
       R"("codec":"none","recipe":"dense","params":[],"density":1,"momentum":0,"held_bytes":4000,"wire_bytes":4000,"ratio":1)"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  }
  EXPECT_EQ(json.find("owed_norm"), std::string::npos);
  EXPECT_NE(rows_of(**plan, std::vector<double>{0.0, 2.5, 0.0}).find(R"("owed_norm":2.5)"), std::string::npos);
}

TEST(StreamPlan, JsonListsTheDensityOfTensors) {
  const std::pair<const char*, const char*> cases[] = {{"group_topk:group=512,rate=12.5%", R"("density":0.125,)"},
                                                       {"threshold_sparse:density=25%", R"("density":0.25,)"},
                                                       {"kernel_sparse:rate=12.5%", R"("density":0.125,)"},
                                                       {"powersgd", R"("density":1,)"}};
  for (const auto& [codec, density] : cases) {
    const auto plan = plan_of(codec);
    ASSERT_TRUE(plan) << codec;
    const std::string json = rows_of(**plan, {});
    EXPECT_NE(json.find(density), std::string::npos) << codec << ": " << json;
  }
}

}  // namespace
}  // namespace sirtaki::engine
