#include "scheduler/dispatch/ready_queue.h"

#include <gtest/gtest.h>

#include "runtime/base/check.h"
#include "tests/unit/scheduler/plan/plans.h"

namespace sirtaki::scheduler {
namespace {

TEST(ReadyQueue, MakesABucketReadyWithItsLastTensor) {
  ReadyQueue queue(make_plan({{"a", 10}, {"b", 10}}));
  EXPECT_EQ(queue.tensor_ready(1).value(), std::vector<int>{});
  EXPECT_EQ(queue.front(), std::nullopt);
  EXPECT_EQ(queue.tensor_ready(0).value(), std::vector<int>{0});
  EXPECT_EQ(queue.front(), 0);
}

TEST(ReadyQueue, MakesAllPiecesOfABigTensorReadyAtOnce) {
  ReadyQueue queue(make_plan({{"a", 2100}}));
  EXPECT_EQ(queue.tensor_ready(0).value(), (std::vector<int>{0, 1, 2}));
}

TEST(ReadyQueue, NeverOvertakes) {
  ReadyQueue queue(make_plan({{"a", 1000}, {"b", 1000}}));
  EXPECT_EQ(queue.tensor_ready(1).value(), std::vector<int>{1});
  EXPECT_EQ(queue.front(), std::nullopt);
  ASSERT_TRUE(queue.tensor_ready(0));
  EXPECT_EQ(queue.front(), 0);
  queue.pop();
  EXPECT_EQ(queue.front(), 1);
  EXPECT_FALSE(queue.exhausted());
  queue.pop();
  EXPECT_TRUE(queue.exhausted());
  EXPECT_EQ(queue.front(), std::nullopt);
  EXPECT_THROW(queue.pop(), BugError);
}

TEST(ReadyQueue, RefusesATensorTwiceInAStepAndUnknownOnes) {
  ReadyQueue queue(make_plan({{"a", 10}, {"b", 10}}));
  ASSERT_TRUE(queue.tensor_ready(0));
  const Status twice = queue.tensor_ready(0).status();
  EXPECT_EQ(twice.code(), Code::kInvalidArgument);
  EXPECT_EQ(twice.blame().tensor, "a");
  EXPECT_EQ(queue.tensor_ready(2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(queue.tensor_ready(-1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(queue.front(), std::nullopt) << "refused calls count for nothing";
  queue.restart();
  EXPECT_TRUE(queue.untouched());
  EXPECT_TRUE(queue.tensor_ready(0));
  EXPECT_FALSE(queue.untouched());
}

TEST(ReadyQueue, KnowsNoTensorWithoutAPlan) {
  ReadyQueue queue;
  EXPECT_TRUE(queue.exhausted());
  EXPECT_EQ(queue.tensor_ready(0).status().code(), Code::kInvalidArgument);
  queue.restart();
  EXPECT_EQ(queue.front(), std::nullopt);
}

}  // namespace
}  // namespace sirtaki::scheduler
