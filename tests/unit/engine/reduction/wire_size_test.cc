#include "runtime/engine/reduction/wire_size.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "compression/codecs/catalog.h"
#include "compression/counted_codes.h"
#include "runtime/base/config/compression_methods.h"
#include "runtime/engine/reduction/ring.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {
namespace {

scheduler::TensorInfo tensor_of(std::string name, std::vector<std::int64_t> dims, DType dtype = DType::kF32) {
  return {std::move(name), std::move(dims), dtype};
}

TEST(WireSize, LimitsOfRanksAreThoseOfTheAlgorithms) {
  EXPECT_EQ(reduction_most_ranks(ReductionKind::kRing), Ring::kMostRanks);
  EXPECT_EQ(reduction_most_ranks(ReductionKind::kCounts), compression::CountedCodes::kMostRanks);
  EXPECT_GT(reduction_most_ranks(ReductionKind::kGather), 65536);
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
      const auto planned = planned_tensor(tensor, {codec->id(), ReductionKind::kDense, {}}, 4);
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
  const scheduler::Decision decision = {CodecId::kInt8, ReductionKind::kScatter, {1, 256}};
  const auto planned = planned_tensor(tensor, decision, 4);
  ASSERT_TRUE(planned) << planned.status().to_string();
  EXPECT_EQ(planned->decision, decision);
  EXPECT_EQ(planned->stripe, int8->stripe(decision.params, {64'000, 64}, 4));
  EXPECT_EQ(planned->wire_bytes, static_cast<std::int64_t>(int8->payload_bytes(decision.params, {64'000, 64}, 64'000)));
  const auto gathered = planned_tensor(tensor, {CodecId::kInt8, ReductionKind::kGather, {1, 256}}, 4);
  ASSERT_TRUE(gathered);
  EXPECT_EQ(gathered->wire_bytes, 2 * planned->wire_bytes) << "to three others instead of 2 * 3/4";
}

// 64 filters of 4000 bytes: gather sends 8 with indices of 2 bytes; shared the norms of all 64, then 8 without indices.
TEST(WireSize, SharedBlocksWeighTheirNormsAndNoNumbers) {
  const scheduler::TensorInfo tensor = tensor_of("w", {64, 1000});
  const auto f32 = static_cast<std::int64_t>(DType::kF32);
  const auto shared = planned_tensor(tensor, {CodecId::kKernelSparse, ReductionKind::kShared, {1, 0, 8, f32}}, 4);
  ASSERT_TRUE(shared) << shared.status().to_string();
  EXPECT_EQ(shared->wire_bytes, 64 * 4 + 8 * 4000);
  const auto gathered = planned_tensor(tensor, {CodecId::kKernelSparse, ReductionKind::kGather, {1, 0, 8, f32}}, 4);
  ASSERT_TRUE(gathered);
  EXPECT_EQ(gathered->wire_bytes, 2 * (8 * 2 + 8 * 4000));
}

// Codes of 2 bits to owners and counts of 4 bits back are 3/2 of an allreduce of the codes; 32 exponents are added.
TEST(WireSize, CountsComeBackWithMoreBits) {
  const scheduler::TensorInfo tensor = tensor_of("w", {64, 1000});
  const scheduler::Decision decision = {CodecId::kTwobit, ReductionKind::kCounts, {1, params::kOne, 0}};
  const auto counted = planned_tensor(tensor, decision, 4);
  ASSERT_TRUE(counted) << counted.status().to_string();
  EXPECT_EQ(counted->wire_bytes, 16'000 * 3 / 2 + 32);
  EXPECT_TRUE(planned_tensor(tensor, decision, 127));
  const auto many = planned_tensor(tensor, decision, 128);
  ASSERT_FALSE(many);
  EXPECT_NE(many.status().text().find("at most 127 ranks"), std::string_view::npos) << many.status().text();
}

TEST(WireSize, ARingHasAsManyRanksAsTagsHavePhases) {
  const scheduler::TensorInfo tensor = tensor_of("w", {64, 1000});
  const auto f32 = static_cast<std::int64_t>(DType::kF32);
  const scheduler::Decision decision = {CodecId::kGroupTopk, ReductionKind::kRing, {1, 512, 5, f32, 0, 0}};
  EXPECT_TRUE(planned_tensor(tensor, decision, 15));
  const auto many = planned_tensor(tensor, decision, 16);
  ASSERT_FALSE(many);
  EXPECT_NE(many.status().text().find("reduction ring supports at most 15 ranks"), std::string_view::npos);
}

TEST(WireSize, SumsOfARingAreFloat32WhateverValuesWouldBe) {
  const scheduler::TensorInfo tensor = tensor_of("w", {64, 1000});
  std::vector<std::int64_t> bytes;
  for (const DType value : {DType::kF32, DType::kF16}) {
    const auto as = static_cast<std::int64_t>(value);
    const auto planned = planned_tensor(tensor, {CodecId::kGroupTopk, ReductionKind::kRing, {1, 512, 5, as, 0, 0}}, 4);
    ASSERT_TRUE(planned) << planned.status().to_string();
    bytes.push_back(planned->wire_bytes);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST(WireSize, RefusesDecisionsThatCannotBeRunNamingTheTensor) {
  struct BadCase {
    std::string text;
    scheduler::TensorInfo tensor;
    scheduler::Decision decision;
  };
  const scheduler::TensorInfo w = tensor_of("w", {64, 1000});
  const std::vector<BadCase> cases = {
      {"float32, not int64", tensor_of("w", {9}, DType::kI64), {CodecId::kInt8, ReductionKind::kScatter, {1, 256}}},
      {"does not support reduction lowrank", w, {CodecId::kInt8, ReductionKind::kLowRank, {1, 256}}},
      {"does not support a dense allreduce", w, {CodecId::kInt8, ReductionKind::kDense, {1, 256}}},
      {"codec 99 is not known", w, {static_cast<CodecId>(99), ReductionKind::kScatter, {}}},
      {"int8", w, {CodecId::kInt8, ReductionKind::kScatter, {1, -5}}},
      {"choose values=f32",
       w,
       {CodecId::kKernelSparse, ReductionKind::kShared, {1, 0, 8, static_cast<int>(DType::kF16)}}},
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
