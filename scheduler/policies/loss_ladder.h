// The ladder of the policy auto: levels of compression, and the training loss that each costs by kind of optimizer.
//
// Used by AutoPolicy. The costs are measurements of benchmarks.ladder: the final training loss above that of the same
// training without compression, in the worst of its nets at the tuned learning rate, with every matrix at the level.
// Pure: a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/config/compression_spec.h"

namespace sirtaki::scheduler {

struct LossLevel {
  std::string name;
  Method method;
  std::int64_t cost_unats = 0;  // in millionths of a nat
};

// Returns the levels within the loss budget of a method of the policy auto, in the order of their cost; the first one
// is dense. The costs are those of the optimizer that the key `optimizer` names.
std::vector<LossLevel> loss_ladder(const Method& policy);

}  // namespace sirtaki::scheduler
