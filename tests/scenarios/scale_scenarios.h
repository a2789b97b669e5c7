// Scale scenarios: what a job of many ranks does again and again, with the part to be measured marked.
//
// Before that part every rank computes until one instant of virtual time, so that nothing of the preparation is in
// flight any more; the ranks then begin within `skew` of it.
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
  Duration lateness = std::chrono::seconds(70);  // beyond the first warning
};

// What the measured part cost.
struct ScaleResult {
  std::string scenario;
  std::string error;  // empty: it ran as it should
  world::Traffic hub;
  std::vector<world::Traffic> ranks;
  std::vector<Duration> took;  // by rank; from the common instant, or from the event the scenario is about
  std::uint64_t data_operations = 0;
};

// steady_state, plan_change, first_use_name, first_use_names, first_use_stream, unused_parameter, late_rank, dead_rank,
// heartbeats (a minute without work), end.
const std::vector<std::string>& scale_scenarios();
ScaleResult run_scale(const std::string& scenario, world::SimOptions world, const ScaleOptions& options);

}  // namespace sirtaki::scenarios
