// Helpers of tests of simulated jobs: limits that small tensors exercise, and a run that has to succeed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/scenarios/scenarios.h"
#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {

// Returns limits at which small tensors exercise fusion, cutting and credit.
inline world::SimOptions small_limits(std::uint64_t seed, int size) {
  world::SimOptions options;
  options.seed = seed;
  options.size = size;
  options.engine.layout.fusion_bytes = 4096;
  options.engine.layout.partition_bytes = 8192;
  options.engine.credit_bytes = 20000;
  return options;
}

// Expects that every rank succeeds and no operation is left in flight. `took` receives the virtual time.
inline void expect_well(const world::SimOptions& options, const ScenarioFn& scenario, Duration* took = nullptr,
                        std::vector<std::string>* warnings = nullptr) {
  world::SimWorld world(options);
  const TimePoint begin = world.now();
  ASSERT_EQ(world.run(scenario), "") << "seed " << options.seed;
  EXPECT_EQ(world.check_quiet(), "") << "seed " << options.seed;
  if (took != nullptr) {
    *took = world.now() - begin;
  }
  if (warnings != nullptr) {
    *warnings = world.warnings();
  }
}

}  // namespace sirtaki::scenarios
