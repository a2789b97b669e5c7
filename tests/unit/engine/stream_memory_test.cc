#include "runtime/engine/stream_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "runtime/engine/wire_size.h"

namespace sirtaki::engine {
namespace {

constexpr std::int64_t kNumel = 4096;

StreamTensor tensor_of() {
  StreamTensor tensor;
  tensor.name = "w";
  tensor.dims = {64, 64};
  return tensor;
}

scheduler::PlannedTensor twobit_by(Recipe recipe) {
  const StreamTensor tensor = tensor_of();
  return planned_tensor({tensor.name, tensor.dims, tensor.dtype}, {CodecId::kTwobit, recipe, {1, params::kOne, 0}}, 3)
      .value();
}

// A rank owes as the owner of stripes; when the tensor travels another way, nobody owns stripes any more.
TEST(StreamMemory, WhatOwnersOweIsOwedByRanksWhenTheRecipeChanges) {
  StreamMemory memory({tensor_of()}, 0, 3);
  std::vector<float> gradient(static_cast<std::size_t>(kNumel), 0.0F);
  TensorView view;
  view.data = std::as_writable_bytes(std::span(gradient)).data();
  view.numel = kNumel;
  memory.admit(0, twobit_by(Recipe::kScatter), view, 1.0);
  const std::vector<float> sums(static_cast<std::size_t>(kNumel), 3.0F);
  const kernels::Feedback owner = memory.of(0).owner_feedback(std::as_bytes(std::span(sums)).data(), 0);
  std::memcpy(owner.left, sums.data(), sizeof(float));
  ASSERT_TRUE(memory.owes(0));

  memory.admit(0, twobit_by(Recipe::kGather), view, 1.0);
  const kernels::Feedback own = memory.of(0).feedback(std::as_bytes(std::span(gradient)).data(), 0);
  float owed = 0;
  std::memcpy(&owed, own.residual, sizeof(owed));
  EXPECT_EQ(owed, 3.0F);
  EXPECT_EQ(memory.owed_norm(0), 3.0);
}

}  // namespace
}  // namespace sirtaki::engine
