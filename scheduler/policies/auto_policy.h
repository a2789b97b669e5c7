// The policy auto: compresses tensors only if the model predicts shorter steps.
//
// It has levels from dense to sparse, ordered by the training loss that they cost (loss_ladder.h), and no level beyond
// the loss budget. It takes the mildest level that is nearly as good as the best one, which comes to a loss first:
// steps of a level that costs loss count as longer. It compresses as few tensors as suffice. The first level follows
// from the link alone: the mildest level whose gradients take less than a short step on the link. The first profile of
// steps replaces it without confirmation. A link may read faster with small payloads than with large ones, so such a
// reading counts for larger payloads only after a trial of a milder level (lasting_link.h). Used through
// codec_controller.h. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/policies/codec_controller.h"
#include "scheduler/policies/hysteresis.h"
#include "scheduler/policies/lasting_link.h"
#include "scheduler/policies/loss_ladder.h"

namespace sirtaki::scheduler {

class AutoPolicy final : public CodecController {
 public:
  AutoPolicy(std::vector<Controlled> tensors, const PlannerOptions& planner, std::shared_ptr<const CodecFacts> facts);

  bool begins_by_link() const override { return may_compress_; }
  std::string limit() const override;
  std::optional<std::vector<PlannedTensor>> first(const StepProfile& link,
                                                  const std::vector<PlannedTensor>& now) override;
  std::optional<std::vector<PlannedTensor>> consider(std::uint64_t step, const StepProfile& measured,
                                                     const std::vector<PlannedTensor>& now) override;
  bool at_rest() const override { return at_rest_; }
  const std::string& last_decision() const override { return decision_; }
  void restart() override;

 private:
  static constexpr int kFirstBan = 8;

  struct Outcome {
    std::vector<PlannedTensor> tensors;
    std::int64_t step_us = 0;
    std::int64_t face_us = 0;  // the same on the link as it reads
  };

  bool compresses_any() const;
  Outcome at_level(std::size_t level, const StepProfile& profile, const std::vector<PlannedTensor>& now) const;
  std::vector<Outcome> all_levels(const StepProfile& profile, const std::vector<PlannedTensor>& now) const;
  StepProfile believed(const StepProfile& profile, const std::vector<PlannedTensor>& tensors, std::int64_t sent) const;
  std::int64_t to_a_loss(std::size_t level, std::int64_t step_us) const;
  std::int64_t best_of(const std::vector<Outcome>& outcomes, std::int64_t Outcome::*step_us) const;
  std::size_t mildest(const std::vector<Outcome>& outcomes, std::int64_t best_us, std::int64_t permille) const;
  std::size_t choose(const std::vector<Outcome>& outcomes, std::int64_t now_us) const;
  void explain(Outcome& outcome, const std::string& change) const;
  void prune(Outcome& outcome, const Outcome& dense, const StepProfile& profile, std::int64_t sent) const;
  // The level before the last change: its measured step, and the prediction of that time.
  struct Before {
    std::size_t level = 0;
    std::int64_t measured_us = 0;
    std::int64_t model_us = 0;
    bool trial = false;  // the change was a trial
    int profiles = 0;    // since the change
  };

  std::int64_t back_permille() const;
  std::optional<std::size_t> trial(std::vector<Outcome>& outcomes, const StepProfile& profile,
                                   const std::vector<PlannedTensor>& now);
  void learn(std::int64_t shown, std::int64_t sent);
  bool proved_wrong(const StepProfile& profile, const std::vector<Outcome>& outcomes);
  StepProfile with_trusted_link(const StepProfile& profile, const std::vector<PlannedTensor>& now);

  const std::vector<Controlled> tensors_;
  const PlannerOptions planner_;
  const std::shared_ptr<const CodecFacts> facts_;
  std::vector<LossLevel> levels_;  // the first is dense
  bool may_compress_ = false;      // some level changes some tensor
  std::int64_t gain_ = 0;          // 1/65536 of a step

  std::size_t level_ = 0;
  std::size_t first_level_ = 0;
  bool judged_ = false;  // a profile of steps has confirmed or replaced the first level
  Hysteresis hysteresis_;
  std::int64_t first_link_ = 0;    // bytes per second before the first step; 0: not measured
  std::int64_t trusted_link_ = 0;  // bytes per second that the link has shown; 0: none yet
  LastingLink lasting_;
  std::int64_t last_link_ = 0;  // reading of the last profile
  int slower_ = 0;              // consecutive profiles whose steps only a slower link explains
  std::optional<Before> before_;
  int worse_ = 0;        // consecutive profiles with longer steps than the level before the change explains
  int doubted_ = 0;      // consecutive profiles in which a milder level would do if the link is as fast as it reads
  int banned_ = 0;       // profiles for which the level stays
  int ban_ = kFirstBan;  // length of the next ban or doubt
  bool at_rest_ = false;
  std::string decision_;
};

}  // namespace sirtaki::scheduler
