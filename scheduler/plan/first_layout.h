// The layout of the first plan, made before any measurement: the tensors that share a partition, and the borders of
// large ones.
//
// Internal to Plan::build(), which has checked the arguments. Pure. See planner_layout.h for the layout after
// measurements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

// Every partition costs memory on every rank. A tag has 18 bits for the position, and the stream reserves the three
// largest positions for exchanges of its own (runtime/engine/common/tags.h).
inline constexpr std::int64_t kMaxPartitions = (1 << 18) - 3;

// Returns the partitions in total order. kInvalidArgument: more than kMaxPartitions.
Result<std::vector<Partition>> first_layout(const std::vector<PlannedTensor>& tensors, std::span<const int> order,
                                            const LayoutOptions& options);

}  // namespace sirtaki::scheduler
