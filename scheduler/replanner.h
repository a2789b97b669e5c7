// Replanner: decides for one stream when its steps are profiled, whether another plan is worth adopting, and when the
// planner was wrong.
//
// All ranks decide alike without messages, because every answer follows from the first plan, the options and the
// exchanged profiles alone:
//   1. In a step with wants_profile(), ranks exchange a profile; consider() may return a Proposal.
//   2. A later step exchanges proposed_digest(). If it is equal everywhere, adopted() puts the plan in force from the
//      next step border on; otherwise call rejected().
//   3. restart() follows a step that was given up.
// The stream does the exchanges and writes the log. It owns the Replanner and calls it on the loop thread. Pure: no
// I/O, no thread, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler/plan/plan.h"
#include "scheduler/plan/planner.h"
#include "scheduler/plan/profile.h"
#include "scheduler/policies/codec_controller.h"

namespace sirtaki::scheduler {

struct ReplannerOptions {
  PlannerOptions planner;
  bool frozen = false;  // never leave the first plan
  // Smallest gain of a new plan, as a part of the predicted step time, over the first plan, which ignores the steps,
  // and over later ones.
  std::int64_t first_gain_permille = 20;
  std::int64_t later_gain_permille = 50;
};

enum class Reason : std::uint8_t {
  kCodecs,         // a policy wants other wire formats
  kGain,           // another plan is predicted to be better by more than the threshold
  kUnconfirmed,    // kGain, but the plan in force is not the first one, and only the next profile can confirm the gain
  kNoGain,         // no other plan is predicted to be better by the threshold
  kUnknownLink,    // too few transfers measured so far
  kNoSteps,        // the plan in force is new: no whole step of it was measured
  kOnTrial,        // the plan adopted last is judged before the search goes on
  kRollback,       // the plan adopted last made steps longer: back to the first one, for good
  kAdopted,        // all ranks have the proposed plan
  kRejected,       // ranks computed different plans: the present one stays, for good
  kRestarted,      // a step was given up: back to the first plan
  kObjection,      // a rank requires the first plan to stay: planning ends
  kPlannerFailed,  // the planner refused its input
};
std::string_view reason_name(Reason reason);

// The reason for which a stream keeps its plan for good, even after a step was given up. The largest one of all ranks
// counts.
enum class Objection : std::uint8_t { kNone, kPlannerFailed, kRolledBack, kRanksDiffer };

// A decision with its inputs and reason. Equal on all ranks.
struct DecisionRecord {
  std::uint64_t step = 0;
  Reason reason = Reason::kNoGain;
  std::uint64_t profile_digest = 0;
  std::uint64_t plan_version = 0;  // in force
  std::uint64_t next_version = 0;  // proposed or adopted; equal to plan_version if nothing changes
  std::uint64_t next_digest = 0;
  std::int64_t measured_us = 0;   // step time of the profile
  std::int64_t current_us = 0;    // predicted for the plan in force
  std::int64_t predicted_us = 0;  // predicted for the next one
  std::int64_t bound_us = 0;      // lower bound of the predictions of all plans; 0: not known

  friend bool operator==(const DecisionRecord&, const DecisionRecord&) = default;
};
std::string to_string(const DecisionRecord& record);

struct Proposal {
  std::shared_ptr<const Plan> plan;
  Reason reason = Reason::kGain;  // kGain, kCodecs or kRollback
  std::int64_t predicted_us = 0;
  std::int64_t current_us = 0;
  std::int64_t bound_us = 0;
};

class Replanner {
 public:
  // Limit of log entries; older ones are dropped.
  static constexpr std::size_t kMaxLog = 256;

  // `first` is the first plan of the stream. `controller` belongs to a policy that changes wire formats, and may be
  // nullptr. With a controller planning never ends for good: a plan that makes steps longer is taken back, and the
  // layout then stays until the controller changes a format.
  Replanner(std::shared_ptr<const Plan> first, ReplannerOptions options,
            std::unique_ptr<CodecController> controller = nullptr);

  // Returns true in steps 3 and 6 and in every 16th step of an attempt (with a controller in steps 2 and 4 and every
  // 8th), unless frozen or with an open proposal. Every profile without a change doubles the interval, up to 32 steps
  // or a second, and the first change resets it. The same on all ranks.
  bool wants_profile(std::uint64_t step) const;

  // Requires `profile` as exchanged in step `step`. A proposal stays open until adopted(), rejected() or restart().
  std::optional<Proposal> consider(std::uint64_t step, const StepProfile& profile);

  // Returns the digest for the second exchange: that of the open proposal, or else of the plan in force.
  std::uint64_t proposed_digest() const;

  // Puts the proposed plan in force from the next step border on, after all ranks have computed it. Returns it.
  std::shared_ptr<const Plan> adopted(std::uint64_t step);
  // Keeps the plan in force after digests differed, and freezes this replanner.
  void rejected(std::uint64_t step);
  // Returns to the first plan after a step was given up, because ranks may have seen different numbers of exchanges.
  // All measurements are dropped, and the stream adopts current(). An objection stays: if only this rank knows it, the
  // next profile has to carry it, and with that profile all ranks freeze again.
  void restart();

  const std::shared_ptr<const Plan>& current() const { return current_; }
  bool proposal_open() const { return open_.has_value(); }
  // Returns true if no further plan will be proposed and no profile is wanted.
  bool frozen() const { return frozen_; }
  // Returns the reason of freezing itself, for a warning; empty if it did not.
  const std::string& frozen_because() const { return frozen_because_; }
  // Returns the objection that this rank adds to its profiles.
  Objection objection() const { return objection_; }

  const std::deque<DecisionRecord>& log() const { return log_; }
  // Returns true if profiles have to contain the losses of all ranks.
  bool wants_losses() const { return controller_ != nullptr && controller_->wants_losses(); }
  // Returns the last decision of the controller, for a person; empty without a controller.
  const std::string& policy_log() const;

 private:
  // The plan adopted last, until measurements have judged it.
  struct Trial {
    std::int64_t before_us = 0;        // measured under the previous plan
    std::int64_t model_before_us = 0;  // predicted for the previous plan from the profile of that time
    std::shared_ptr<const Plan> before;
    int worse = 0;  // consecutive profiles with longer steps than expected
  };

  std::optional<Proposal> judge(const StepProfile& profile, DecisionRecord& record);
  std::optional<Proposal> control(std::uint64_t step, const StepProfile& profile, DecisionRecord& record);
  std::optional<Proposal> improve(const StepProfile& profile, DecisionRecord& record);
  void learn(const StepProfile& profile);
  void space_profiles(std::uint64_t step, const StepProfile& profile, Reason reason);
  std::uint64_t min_interval() const;
  void write(DecisionRecord record);
  void freeze(Objection objection, std::string why);

  const std::shared_ptr<const Plan> first_;
  const ReplannerOptions options_;
  const std::unique_ptr<CodecController> controller_;
  std::shared_ptr<const Plan> current_;
  std::optional<Proposal> open_;
  std::optional<Trial> trial_;
  std::optional<StepProfile> mean_;  // running mean of all profiles; later ones weigh more
  std::uint64_t next_version_ = 0;
  std::string freeze_after_;        // reason for freezing after the rollback that is proposed
  std::uint64_t profile_interval_;  // steps from one profile to the next, a power of two
  bool layout_stays_ = false;       // until the next plan of the controller
  bool gain_before_ = false;        // the previous profile promised a gain, too
  std::int64_t measured_us_ = 0;    // measured under current_ at the last profile
  std::int64_t model_us_ = 0;       // predicted for current_ at the last profile
  bool frozen_;
  std::string frozen_because_;
  Objection objection_ = Objection::kNone;
  std::deque<DecisionRecord> log_;
};

}  // namespace sirtaki::scheduler
