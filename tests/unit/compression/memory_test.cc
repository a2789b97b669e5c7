#include "compression/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "compression/catalog.h"

namespace sirtaki::compression {
namespace {

std::byte* bytes(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values)).data();
}

// Integers up to 127 pass int8 with scale 1; what is left is exact.
TEST(Memory, OwesWhatNeitherTheRankNorTheOwnerHasSent) {
  const PayloadCodec& int8 = *find_payload_codec("int8");
  TensorMemory memory(int8, {1, 4}, {.numel = 10}, {.stripe = 4, .ranks = 2, .rank = 1});
  EXPECT_TRUE(memory.empty());

  std::vector<float> gradient = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const kernels::Feedback own = memory.feedback(bytes(gradient), 0);
  ASSERT_TRUE(own.valid());
  std::vector<float> left = {0, 0, 0, 1, 0, 2, 0, 0, 0, 3};
  std::copy_n(bytes(left), 40, own.left);

  // Stripes 0 and 2 are rank 0's; elements 4 to 7 are this rank's.
  std::vector<float> sums = {1, 1, 1, 1};
  const kernels::Feedback owner = memory.owner_feedback(bytes(sums), 4);
  std::vector<float> unsent = {10, 20, 30, 40};
  std::copy_n(bytes(unsent), 16, owner.left);

  std::vector<float> owed(10);
  memory.owed(bytes(owed));
  EXPECT_EQ(owed, (std::vector<float>{0, 0, 0, 1, 10, 22, 30, 40, 0, 3}));

  std::vector<float> piece = {100, 100, 100};
  memory.settle({.offset = 3, .numel = 3}, bytes(piece));
  EXPECT_EQ(piece, (std::vector<float>{101, 110, 122}));
  memory.owed(bytes(owed));
  EXPECT_EQ(owed, (std::vector<float>{0, 0, 0, 0, 0, 0, 30, 40, 0, 3}));

  memory.restore(bytes(gradient));
  memory.owed(bytes(owed));
  EXPECT_EQ(owed, gradient);
}

TEST(Memory, WithoutErrorFeedbackNothingIsOwed) {
  const PayloadCodec& int8 = *find_payload_codec("int8");
  TensorMemory memory(int8, {0, 256}, {.numel = 3}, {.stripe = 1024, .ranks = 4, .rank = 0});
  std::vector<float> gradient = {1, 2, 3};
  EXPECT_EQ(memory.feedback(bytes(gradient), 0).residual, nullptr);
  EXPECT_EQ(memory.owner_feedback(bytes(gradient), 0).residual, nullptr);
  EXPECT_TRUE(memory.empty());
}

}  // namespace
}  // namespace sirtaki::compression
