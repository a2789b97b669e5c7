// Replanner: decides for one stream when its steps are profiled, whether another plan is worth adopting, and when the
// planner has proved wrong.
//
// Owned by: the stream; used by the loop's thread. Pure: no I/O, no thread, no clock. Every answer follows from the
// first plan, the options and the exchanged profiles alone, so all ranks decide alike and no message says what to do:
//   step in which wants_profile(): the ranks exchange a profile -> consider() -> perhaps a Proposal;
//   a later step carries the exchange of proposed_digest(): equal everywhere -> adopted() and the plan is used from the
//   next step border on; else rejected(). restart() when a step was given up.
// Not for: the exchanges, and writing the log.
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
  // Of the predicted step time, below which a plan stays: the first, which knows nothing of the steps, and later ones.
  std::int64_t first_gain_permille = 20;
  std::int64_t later_gain_permille = 50;
};

enum class Reason : std::uint8_t {
  kCodecs,         // a policy wants tensors to travel in another way
  kGain,           // another plan is predicted to be better by more than the threshold
  kUnconfirmed,    // the same, but the plan in force was planned itself and only the next profile can confirm it
  kNoGain,         // none is
  kUnknownLink,    // too few transfers measured so far
  kNoSteps,        // the plan in force has just been adopted: no whole step of it was measured
  kOnTrial,        // the plan adopted last is judged before another is looked for
  kRollback,       // the plan adopted last made steps longer: back to the first one, for good
  kAdopted,        // all ranks have the proposed plan
  kRejected,       // ranks computed different plans: the present one stays, for good
  kRestarted,      // a step was given up: back to the first plan
  kObjection,      // a rank knows why the first plan has to stay: what follows is not planned
  kPlannerFailed,  // the planner refused its input
};
std::string_view reason_name(Reason reason);

// Why a stream keeps its plan for good, also when a step is given up. The largest one that any rank knows counts.
enum class Objection : std::uint8_t { kNone, kPlannerFailed, kRolledBack, kRanksDiffer };

// What was decided, from what, and why. Equal on all ranks.
struct DecisionRecord {
  std::uint64_t step = 0;
  Reason reason = Reason::kNoGain;
  std::uint64_t profile_digest = 0;
  std::uint64_t plan_version = 0;  // in force
  std::uint64_t next_version = 0;  // proposed or adopted; the one in force where nothing changes
  std::uint64_t next_digest = 0;
  std::int64_t measured_us = 0;   // the profile's step time
  std::int64_t current_us = 0;    // predicted for the plan in force
  std::int64_t predicted_us = 0;  // predicted for the next one
  std::int64_t bound_us = 0;      // no plan is predicted to be faster; 0: not known

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
  // Entries the log holds; older ones are dropped.
  static constexpr std::size_t kMaxLog = 256;

  // `first`: the plan the stream begins with. `controller`: of a policy that changes how tensors travel, or nullptr.
  // With one no plan ends planning for good: one that makes steps longer is taken back, and partitions and their order
  // stay from then on until the controller wants another way.
  Replanner(std::shared_ptr<const Plan> first, ReplannerOptions options,
            std::unique_ptr<CodecController> controller = nullptr);

  // Steps 3, 6 and every 16th of an attempt (8th with a controller), unless frozen or a proposal is open. The longer
  // nothing changes, the less often: the distance doubles with every profile that leaves all as it is, up to 32 steps
  // or a second, and is short again with the first that does not. The same on all ranks.
  bool wants_profile(std::uint64_t step) const;

  // `profile` as it came out of the exchange of step `step`. A proposal stays open until adopted(), rejected() or
  // restart().
  std::optional<Proposal> consider(std::uint64_t step, const StepProfile& profile);

  // The proposed plan's digest, or that of the plan in force: what every rank puts into the second exchange.
  std::uint64_t proposed_digest() const;

  // All ranks hold the proposed plan: it is in force from the next step border on. Returns it.
  std::shared_ptr<const Plan> adopted(std::uint64_t step);
  // The digests differ: the plan in force stays, and this replanner is frozen.
  void rejected(std::uint64_t step);
  // A step was given up, so ranks may have seen different numbers of exchanges: the first plan is in force again, and
  // all measurements are forgotten. The stream adopts current() with it. An objection stays: perhaps only this rank
  // knows it, so the next profile has to carry it; with that profile all ranks freeze again.
  void restart();

  const std::shared_ptr<const Plan>& current() const { return current_; }
  bool proposal_open() const { return open_.has_value(); }
  // Nothing will be proposed any more, and no profile wanted.
  bool frozen() const { return frozen_; }
  // Why it froze itself, for a warning; empty: it did not.
  const std::string& frozen_because() const { return frozen_because_; }
  // What this rank puts into its profiles.
  Objection objection() const { return objection_; }

  const std::deque<DecisionRecord>& log() const { return log_; }
  // Whether profiles shall have every rank's loss.
  bool wants_losses() const { return controller_ != nullptr && controller_->wants_losses(); }
  // The controller's last word, for a person; empty without one.
  const std::string& policy_log() const;

 private:
  // The plan adopted last, until measurements have judged it.
  struct Trial {
    std::int64_t before_us = 0;        // measured under the plan before
    std::int64_t model_before_us = 0;  // predicted for the plan before, from the profile of then
    std::shared_ptr<const Plan> before;
    int worse = 0;  // profiles in a row that were worse than that
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
  std::optional<StepProfile> mean_;  // of all profiles, the later ones weigh more
  std::uint64_t next_version_ = 0;
  std::string freeze_after_;        // the reason, from a rollback's proposal on
  std::uint64_t profile_interval_;  // steps from one profile to the next, a power of two
  bool layout_stays_ = false;       // until the controller's next plan
  bool gain_before_ = false;        // the profile before promised a gain, too
  std::int64_t measured_us_ = 0;    // under current_, at the last profile
  std::int64_t model_us_ = 0;       // predicted for current_ at the last profile
  bool frozen_;
  std::string frozen_because_;
  Objection objection_ = Objection::kNone;
  std::deque<DecisionRecord> log_;
};

}  // namespace sirtaki::scheduler
