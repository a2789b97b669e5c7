// The first plan's layout, before anything is measured: which tensors share a partition, and where big ones are cut.
//
// Used by Plan::build() only, which has checked the arguments. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

// Every partition costs memory on every rank, and a tag has 18 bits for its position, of which the two largest are the
// stream's own exchanges (runtime/engine/common/tags.h).
inline constexpr std::int64_t kMaxPartitions = (1 << 18) - 2;

// In total order. kInvalidArgument: more than kMaxPartitions.
Result<std::vector<Partition>> first_layout(const std::vector<PlannedTensor>& tensors, std::span<const int> order,
                                            const LayoutOptions& options);

}  // namespace sirtaki::scheduler
