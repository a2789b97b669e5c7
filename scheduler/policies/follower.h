// Follower: methods that name their codec, where the reduction and the gates are left to the link that was measured.
//
// Recipes by the formulas of policy.h. Of algc also the gate, and each layer's density: the largest whose sending ends
// with the backward pass, as what is ready later needs the link, too; never less than `density`, and the layers' order
// is that in which they became ready (after the layer-wise adaptive sparsification of Shi et al., LAGS, 2019).
// A reduction or a gate has to be right at four fifths and at five fourths of the bandwidth, too; a density has to be
// wrong by a third; and two profiles in a row have to want the change. Used through controller.h; pure.
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
