// LinkPolicyTest: a policy on a net of eight layers of 1 MiB, and profiles of it over a link.
//
// A fixture to derive from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/unit/scheduler/policies/codec_controller_test.h"

namespace sirtaki::scheduler {

class LinkPolicyTest : public ControllerTest {
 protected:
  LinkPolicyTest() {
    for (int i = 0; i < 8; ++i) {
      add("layer" + std::to_string(i) + ".weight", {512, 512}, 37'500 - 5'000 * i);
      add("layer" + std::to_string(i) + ".bias", {512}, 35'000 - 5'000 * i);
    }
    profile_.latency_ns = 100'000;
    profile_.codec_costs = {{{500, 500}, {500, 500}, {500, 500}, {1500, 500}, {1500, 500}, {4000, 1000}}};
  }

  // One profile over a link whose steps take `percent` of the prediction.
  bool profile(std::int64_t bytes_per_second, std::int64_t percent = 100) {
    profile_.bytes_per_second = bytes_per_second;
    const Prediction p = predict_tensors(now_, profile_, planner_);
    profile_.step_us = p.step_us * percent / 100;
    profile_.exposed_us = p.exposed_us;
    return consider();
  }

  int compressed() const {
    return static_cast<int>(
        std::ranges::count_if(now_, [](const PlannedTensor& t) { return t.decision.format().compressed(); }));
  }
  bool all_dense() const {
    return std::ranges::all_of(now_, [](const PlannedTensor& t) { return t.decision == Decision{}; });
  }
  std::int64_t step_us(std::int64_t bytes_per_second) {
    profile_.bytes_per_second = bytes_per_second;
    return predict_tensors(now_, profile_, planner_).step_us;
  }
};

}  // namespace sirtaki::scheduler
