// What tests of simulated jobs share: limits that small tensors exercise, and a run that has to end well.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/scenarios/scenarios.h"
#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {

// Small tensors exercise fusion, cutting and credit.
inline world::SimOptions small_limits(std::uint64_t seed, int size) {
  world::SimOptions options;
  options.seed = seed;
  options.size = size;
  options.engine.layout.fusion_bytes = 4096;
  options.engine.layout.partition_bytes = 8192;
  options.engine.credit_bytes = 20000;
  return options;
}

// Every rank succeeds, and nothing is left in flight. `took`: in virtual time.
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
