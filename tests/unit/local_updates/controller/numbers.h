// Usual values for the tests of guards, norms and statistics, and values that are never measurements.
#pragma once

#include <cstdint>
#include <limits>

namespace sirtaki::local_updates {

// The steps of a round, and the sum of their learning rates.
inline constexpr std::int64_t kSteps = 8;
inline constexpr double kRates = 0.8;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace sirtaki::local_updates
