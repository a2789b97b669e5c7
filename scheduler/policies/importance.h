// The policy importance: group_topk at one rate for all tensors, which follows the link's delay and the exposed time.
//
// After Meng's dynamic compression by network status (2025); two rules for the rate:
//   budget  the largest of a fixed ladder whose predicted exposed part of a step is small enough (after Kimad); down at
//           once, up when two profiles say so;
//   aimd    times `down` while delays grow or too much is exposed, plus `up` while less than half of that is (as in
//           NetSenseML).
// Above the rate at which a dense allreduce is no longer, tensors travel as they are. Used through controller.h; pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/policies/controller.h"
#include "scheduler/policies/hysteresis.h"

namespace sirtaki::scheduler {

class Importance final : public Controller {
 public:
  Importance(std::vector<Controlled> tensors, const PlannerOptions& planner, std::shared_ptr<const CodecFacts> facts);

  std::optional<std::vector<PlannedTensor>> consider(std::uint64_t step, const StepProfile& profile,
                                                     const std::vector<PlannedTensor>& now) override;
  const std::string& last_decision() const override { return decision_; }
  void restart() override;

  std::int64_t rate() const { return rate_; }  // 1/65536

 private:
  std::vector<PlannedTensor> at(std::int64_t rate, const StepProfile& profile,
                                const std::vector<PlannedTensor>& now) const;
  std::int64_t budget_rate(const StepProfile& profile, const std::vector<PlannedTensor>& now) const;
  std::int64_t aimd_rate(const StepProfile& profile);

  const std::vector<Controlled> tensors_;
  const PlannerOptions planner_;
  const std::shared_ptr<const CodecFacts> facts_;
  Method method_;
  std::int64_t rate_ = 0;
  std::int64_t least_latency_ns_ = 0;  // seen so far, creeping up; 0: none
  Hysteresis hysteresis_;
  std::string decision_;
};

}  // namespace sirtaki::scheduler
