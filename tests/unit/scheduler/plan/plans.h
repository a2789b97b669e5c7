// Plans for the scheduler's tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

// In the order of the list: buckets up to 1 KiB, pieces up to 4 KiB.
inline std::shared_ptr<const Plan> make_plan(std::vector<PlannedTensor> tensors) {
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  const LayoutOptions options = {.fusion_bytes = 1024, .partition_bytes = 4096, .alignment = 64};
  auto plan = Plan::build(std::move(tensors), order, options, 1);
  EXPECT_TRUE(plan) << plan.status().to_string();
  return plan ? *plan : nullptr;
}

}  // namespace sirtaki::scheduler
