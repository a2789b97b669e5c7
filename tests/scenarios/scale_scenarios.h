// Scale scenarios: repeated work of jobs with many ranks, with marks around the measured part.
//
// Before that part every rank computes until one instant of virtual time, so that no message of the preparation is in
// flight any more; the ranks then begin within `skew` of that instant.
#pragma once

#include <string>
#include <vector>

#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {

struct ScaleOptions {
  int tensors = 161;
  int names = 161;
  int steps = 10;
  Duration skew = std::chrono::microseconds(200);
  Duration lateness = std::chrono::seconds(70);  // after the first warning
};

// Costs of the measured part.
struct ScaleResult {
  std::string scenario;
  std::string error;  // empty: the run succeeded
  world::Traffic coordinator;
  std::vector<world::Traffic> ranks;
  // one entry per rank; from the common instant, or from the event that the scenario measures
  std::vector<Duration> took;
  std::uint64_t data_operations = 0;
};

// Returns the names: steady_state, plan_change, first_use_name, first_use_names, first_use_stream, unused_parameter,
// late_rank, dead_rank, heartbeats (a minute without work), end.
const std::vector<std::string>& scale_scenarios();
ScaleResult run_scale(const std::string& scenario, world::SimOptions world, const ScaleOptions& options);

}  // namespace sirtaki::scenarios
