// Follower: methods with a fixed codec, whose reduction and gates follow the measured link.
//
// Reductions follow the formulas of policy.h. For algc, the follower also sets the gate and the density of each layer:
// the largest density whose transfer ends with the backward pass, because tensors that are ready later need the link,
// too; never less than `density`. It visits layers in the order in which they became ready (compare the layer-wise
// adaptive sparsification of Shi et al., LAGS, 2019).
// A change needs two consecutive profiles that want it. A new reduction or gate also has to hold at four fifths and at
// five fourths of the bandwidth, and a density has to be wrong by a third. Used through codec_controller.h. Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/policies/codec_controller.h"
#include "scheduler/policies/hysteresis.h"

namespace sirtaki::scheduler {

class Follower final : public CodecController {
 public:
  Follower(std::vector<Controlled> tensors, const PlannerOptions& planner, std::shared_ptr<const CodecFacts> facts);

  std::optional<std::vector<PlannedTensor>> consider(std::uint64_t step, const StepProfile& profile,
                                                     const std::vector<PlannedTensor>& now) override;
  const std::string& last_decision() const override { return decision_; }
  void restart() override;

 private:
  std::vector<Method> methods_at(const StepProfile& profile, const std::vector<PlannedTensor>& now) const;
  std::optional<PlannedTensor> change(std::size_t tensor, const Method& method, const StepProfile& profile,
                                      const PlannedTensor& now) const;

  const std::vector<Controlled> tensors_;
  const PlannerOptions planner_;
  const std::shared_ptr<const CodecFacts> facts_;
  Hysteresis hysteresis_;
  std::string decision_;
};

}  // namespace sirtaki::scheduler
