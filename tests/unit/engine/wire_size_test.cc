#include "runtime/engine/wire_size.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "compression/catalog.h"
#include "scheduler/plan.h"

namespace sirtaki::engine {
namespace {

scheduler::TensorInfo tensor_of(std::string name, std::vector<std::int64_t> dims, DType dtype = DType::kF32) {
  return {std::move(name), std::move(dims), dtype};
}

TEST(WireSize, TensorsWeighWhatTheirPartsDoAfterEncoding) {
  const std::vector<scheduler::TensorInfo> list = {tensor_of("small", {3}), tensor_of("empty", {0, 4}),
                                                   tensor_of("big", {50, 100}), tensor_of("counts", {7}, DType::kI64)};
  const std::vector<int> order = {3, 2, 1, 0};
  const scheduler::LayoutOptions layout = {.fusion_bytes = 1024, .partition_bytes = 4096, .alignment = 64};
  for (const compression::Codec* codec : compression::codecs()) {
    SCOPED_TRACE(codec->name());
    std::vector<scheduler::PlannedTensor> tensors;
    std::int64_t all = 0;
    for (const scheduler::TensorInfo& tensor : list) {
      const auto planned = planned_tensor(tensor, {codec->id(), Recipe::kDense, {}}, 4);
      ASSERT_TRUE(planned) << planned.status().to_string();
      EXPECT_EQ(planned->wire_bytes,
                planned->numel * static_cast<std::int64_t>(dtype_size(codec->wire_dtype(tensor.dtype))))
          << tensor.name;
      all += planned->wire_bytes;
      tensors.push_back(*planned);
    }
    const auto plan = scheduler::Plan::build(tensors, order, layout, 1);
    ASSERT_TRUE(plan) << plan.status().to_string();
    for (const scheduler::Partition& partition : (*plan)->partitions()) {
      EXPECT_EQ(partition.wire_bytes, partition.numel * static_cast<std::int64_t>(dtype_size(wire_dtype(partition))));
      all -= partition.wire_bytes;
    }
    EXPECT_EQ(all, 0);
  }
}

TEST(WireSize, APayloadCodecSaysWhereItsTensorsAreCut) {
  const compression::PayloadCodec* int8 = compression::find_payload_codec(CodecId::kInt8);
  ASSERT_NE(int8, nullptr);
  const scheduler::TensorInfo tensor = tensor_of("w", {64, 1000});
  const scheduler::Decision decision = {CodecId::kInt8, Recipe::kScatter, {1, 256}};
  const auto planned = planned_tensor(tensor, decision, 4);
  ASSERT_TRUE(planned) << planned.status().to_string();
  EXPECT_EQ(planned->decision, decision);
  EXPECT_EQ(planned->stripe, int8->stripe(decision.params, {64'000, 64}, 4));
  EXPECT_EQ(planned->wire_bytes, static_cast<std::int64_t>(int8->payload_bytes(decision.params, {64'000, 64}, 64'000)));
  const auto gathered = planned_tensor(tensor, {CodecId::kInt8, Recipe::kGather, {1, 256}}, 4);
  ASSERT_TRUE(gathered);
  EXPECT_EQ(gathered->wire_bytes, 2 * planned->wire_bytes) << "to three others instead of 2 * 3/4";
}

TEST(WireSize, RefusesDecisionsThatCannotBeRunNamingTheTensor) {
  struct BadCase {
    std::string text;
    scheduler::TensorInfo tensor;
    scheduler::Decision decision;
  };
  const scheduler::TensorInfo w = tensor_of("w", {64, 1000});
  const std::vector<BadCase> cases = {
      {"float32, not for int64", tensor_of("w", {9}, DType::kI64), {CodecId::kInt8, Recipe::kScatter, {1, 256}}},
      {"does not travel by recipe lowrank", w, {CodecId::kInt8, Recipe::kLowRank, {1, 256}}},
      {"cannot be summed on the way", w, {CodecId::kInt8, Recipe::kDense, {1, 256}}},
      {"codec 99 is not known", w, {static_cast<CodecId>(99), Recipe::kScatter, {}}},
      {"int8", w, {CodecId::kInt8, Recipe::kScatter, {1, -5}}},
  };
  for (const BadCase& bad : cases) {
    const auto planned = planned_tensor(bad.tensor, bad.decision, 4);
    ASSERT_FALSE(planned) << bad.text;
    EXPECT_EQ(planned.status().code(), Code::kInvalidArgument);
    EXPECT_NE(planned.status().text().find("'w'"), std::string_view::npos) << planned.status().text();
    EXPECT_NE(planned.status().text().find(bad.text), std::string_view::npos) << planned.status().text();
  }
}

}  // namespace
}  // namespace sirtaki::engine
