// The policy importance: group_topk at one rate (fraction sent) for all tensors, which follows the delay of the link
// and the exposed time. It follows the dynamic compression by network status of Meng (2025).
//
// It has two rules for the rate:
//   budget  The largest rate of a fixed ladder whose predicted exposed part of a step is small enough (compare Kimad),
//           and up to twice that rate while it is worth the longer step. The rate falls at once if steps wait. It rises
//           if two profiles want it, or if a trial of a higher rate (rate_probe.h) was worth its cost.
//   aimd    The rate is multiplied by `down` while delays grow or too much is exposed, and `up` is added while less
//           than half of the limit is exposed (as in NetSenseML).
// With split=loss, ranks with larger losses send more. Their shares of the mean rate are the ratio of cross-entropy to
// its mean, a quarter to four, to the power of 2/3 (which minimises the sum of squared loss per rate, as in DAGC-R).
// Payloads then differ in size, so they are sent by gather, whatever `wire` says. Shares change if one is wrong by a
// quarter in two consecutive profiles.
// Above the rate at which a dense allreduce takes no longer, tensors are sent dense. Used through codec_controller.h.
// Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/policies/codec_controller.h"
#include "scheduler/policies/hysteresis.h"
#include "scheduler/policies/rate_probe.h"

namespace sirtaki::scheduler {

class Importance final : public CodecController {
 public:
  Importance(std::vector<Controlled> tensors, const PlannerOptions& planner, std::shared_ptr<const CodecFacts> facts);

  std::optional<std::vector<PlannedTensor>> consider(std::uint64_t step, const StepProfile& profile,
                                                     const std::vector<PlannedTensor>& now) override;
  // A short interval, so that changes of the link are followed soon, including trials of a higher rate.
  std::uint64_t profile_every() const override { return 4; }
  bool wants_losses() const override { return splits(); }
  const std::string& last_decision() const override { return decision_; }
  void restart() override;

  std::int64_t rate() const { return rate_; }  // 1/65536

 private:
  bool splits() const { return method_.choice("split") == "loss"; }
  PlannedTensor split(PlannedTensor planned, const TensorInfo& tensor) const;
  bool update_shares(const StepProfile& profile);
  std::vector<PlannedTensor> at(std::int64_t rate, const StepProfile& profile,
                                const std::vector<PlannedTensor>& now) const;
  std::int64_t budget_rate(const StepProfile& profile, const std::vector<PlannedTensor>& now) const;
  std::int64_t aimd_rate(const StepProfile& profile);
  bool follow_link(StepProfile& profile, bool mixed);
  std::optional<std::int64_t> judge_trial(std::int64_t step_us, std::string& why);
  std::optional<std::int64_t> next_budget_rate(const StepProfile& profile, const std::vector<PlannedTensor>& now,
                                               bool shares_changed, std::string& why);

  const std::vector<Controlled> tensors_;
  const PlannerOptions planner_;
  const std::shared_ptr<const CodecFacts> facts_;
  Method method_;
  std::int64_t rate_ = 0;
  std::int64_t least_latency_ns_ = 0;  // smallest so far, slowly rising; 0: none
  std::vector<std::int64_t> shares_;   // indexed by rank, 1/65536 of the mean; empty: equal shares
  Hysteresis hysteresis_;
  RateProbe probe_;
  // Best reading since steps last waited, in bytes per second; 0: not known.
  std::int64_t link_ = 0;
  bool waited_ = false;       // steps waited in the last profile
  int lowered_ = 0;           // profiles until the previous rate has no more effect
  std::int64_t skew_us_ = 0;  // mean wait without a cause in the link: ranks are late
  Hysteresis split_hysteresis_;
  std::int64_t usual_us_ = 0;  // mean step at the rate before a trial, or without one; 0: not known
  std::string decision_;
};

// Returns the shares indexed by rank, in 1/65536 of the mean; empty unless all losses are known and one is above 0.
// Their sum is ranks * 65536, except for rounding down.
std::vector<std::int64_t> shares_by_loss(const std::vector<std::int64_t>& losses);

// Returns the number of kept elements of a group for each rank, 1 to `group`: `keep` on average, less if a share
// exceeds the group. The remainder of rounding goes to the largest fractions, and among equal ones to the lower rank.
std::vector<std::int64_t> split_keep(std::int64_t keep, std::int64_t group, const std::vector<std::int64_t>& shares);

}  // namespace sirtaki::scheduler
