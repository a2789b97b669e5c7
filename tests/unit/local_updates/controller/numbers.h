// What the tests of guards, norms and statistics take for usual, and what is never a measurement.
#pragma once

#include <cstdint>
#include <limits>

namespace sirtaki::local_updates {

// Of a round: its steps, and the sum of their learning rates.
inline constexpr std::int64_t kSteps = 8;
inline constexpr double kRates = 0.8;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace sirtaki::local_updates
