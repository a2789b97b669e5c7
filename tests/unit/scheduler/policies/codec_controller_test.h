// A fixture to derive from: the constructor adds tensors and sets the common values of profiles.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/policies/codec_controller.h"
#include "tests/unit/scheduler/policies/codec_facts.h"

namespace sirtaki::scheduler {

class ControllerTest : public testing::Test {
 protected:
  // A backward pass of 40 ms and a forward pass of 20 ms.
  ControllerTest() {
    planner_.ranks = 4;
    profile_.backward_us = 40'000;
    profile_.forward_us = 20'000;
  }

  void add(std::string name, std::vector<std::int64_t> dims, std::int64_t ready_us) {
    infos_.push_back({std::move(name), std::move(dims)});
    profile_.ready_us.push_back(ready_us);
    profile_.need_us.push_back(StepProfile::kUnknown);
  }

  // Returns the controller of a spec, with the first decisions in now_; nullptr: none.
  std::unique_ptr<CodecController> controller(const std::string& text) {
    const Spec spec = parse_spec(text).value();
    now_ = decide(spec, infos_, {.ranks = 4}, *facts_).value();
    return make_controller(spec, infos_, planner_, facts_);
  }
  void make(const std::string& text) {
    controller_ = controller(text);
    ASSERT_NE(controller_, nullptr);
  }

  // Returns true if profile_ changed a decision in now_.
  bool consider() {
    auto next = controller_->consider(step_ += 8, profile_, now_);
    if (next) {
      now_ = std::move(*next);
    }
    return next.has_value();
  }

  std::vector<TensorInfo> infos_;
  PlannerOptions planner_;
  StepProfile profile_;
  std::shared_ptr<const CodecFacts> facts_ = std::make_shared<PlainFacts>(4);
  std::unique_ptr<CodecController> controller_;
  std::vector<PlannedTensor> now_;
  std::uint64_t step_ = 0;
};

}  // namespace sirtaki::scheduler
