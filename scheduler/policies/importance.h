// The policy importance: group_topk at one rate for all tensors, which follows the link's delay and the exposed time.
//
// After Meng's dynamic compression by network status (2025); two rules for the rate:
//   budget  the largest of a fixed ladder whose predicted exposed part of a step is small enough (after Kimad), and up
//           to twice that while it is worth the longer step; down at once, if steps wait; up when two profiles say so,
//           or when more was tried (rate_probe.h) and was worth it;
//   aimd    times `down` while delays grow or too much is exposed, plus `up` while less than half of that is (as in
//           NetSenseML).
// With split=loss ranks with larger losses send more: shares of the mean rate by the cross-entropy over its mean, a
// quarter to four times, to the power of 2/3 (which minimises the sum of squared loss per rate, as in DAGC-R); by
// gather, whatever `wire` says, where payloads differ. Shares move when one is wrong by a quarter, for two profiles in
// a row. Above the rate at which a dense allreduce is no longer, tensors travel as they are. Used through controller.h;
// pure.
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
  // So that a link that changes is followed soon, trials of a higher rate included.
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
  std::int64_t least_latency_ns_ = 0;  // seen so far, creeping up; 0: none
  std::vector<std::int64_t> shares_;   // by rank, 1/65536 of the mean; empty: all the same
  Hysteresis hysteresis_;
  RateProbe probe_;
  std::int64_t link_ = 0;     // bytes per second, the best that was read since steps waited; 0: not known
  bool waited_ = false;       // in the last profile, steps did
  int lowered_ = 0;           // profiles until the rate before is not felt any more
  std::int64_t skew_us_ = 0;  // mean of what steps wait where the link is no reason to: ranks are late
  Hysteresis split_hysteresis_;
  std::int64_t usual_us_ = 0;  // mean step at the rate before a trial, or without one; 0: not known
  std::string decision_;
};

// By rank, 1/65536 of the mean; empty unless all losses are known and some is above 0. Their sum is ranks * 65536, but
// for rounding down.
std::vector<std::int64_t> shares_by_loss(const std::vector<std::int64_t>& losses);

// How many of a group each rank sends, 1 to `group`: `keep` on average, less where a share is more than the group. What
// rounding leaves goes to the largest remainders, of equal ones to the lower rank.
std::vector<std::int64_t> split_keep(std::int64_t keep, std::int64_t group, const std::vector<std::int64_t>& shares);

}  // namespace sirtaki::scheduler
