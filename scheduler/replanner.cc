#include "scheduler/replanner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::uint64_t kFirstProfiles[] = {3, 6};
// With a controller; its first decision knows no step, and is replaced within five steps if it was too mild.
constexpr std::uint64_t kFirstControlled[] = {2, 4};
constexpr std::uint64_t kProfileEvery = 16;
constexpr std::uint64_t kMaxProfileInterval = 32;
constexpr std::int64_t kMaxProfileIntervalUs = 1'000'000;
// A plan is judged by so many profiles after its adoption, and rolled back if all of them are worse.
constexpr int kTrialProfiles = 2;
constexpr std::int64_t kWorsePermille = 50;
constexpr std::int64_t kWorseUs = 100;  // smaller differences are noise of the host

// Returns true if a is more than `permille` below b.
bool less_by(std::int64_t a, std::int64_t b, std::int64_t permille) {
  return Wide{a} * 1000 < Wide{b} * (1000 - permille);
}

bool more_by(std::int64_t a, std::int64_t b, std::int64_t permille) {
  return Wide{a} * 1000 > Wide{b} * (1000 + permille);
}

std::int64_t middle(std::int64_t a, std::int64_t b) {
  return a / 2 + b / 2 + (a % 2 + b % 2) / 2;
}

// The link and the costs of codecs are taken as they are: both are estimates over many transfers already.
StepProfile with_link_of(StepProfile mean, const StepProfile& profile) {
  mean.latency_ns = profile.latency_ns;
  mean.bytes_per_second = profile.bytes_per_second;
  mean.codec_costs = profile.codec_costs;
  return mean;
}

std::string_view objection_text(Objection objection) {
  switch (objection) {
    case Objection::kNone:
      break;
    case Objection::kPlannerFailed:
      return "on some rank the planner failed before a step was given up";
    case Objection::kRolledBack:
      return "on some rank a new plan had made steps longer before a step was given up";
    case Objection::kRanksDiffer:
      return "ranks had computed different plans before a step was given up";
  }
  return "some rank requires the first plan";
}

void blend(std::vector<std::int64_t>& mean, const std::vector<std::int64_t>& fresh) {
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] =
        mean[i] == StepProfile::kUnknown || fresh[i] == StepProfile::kUnknown ? fresh[i] : middle(mean[i], fresh[i]);
  }
}

}  // namespace

std::string_view reason_name(Reason reason) {
  switch (reason) {
    case Reason::kCodecs:
      return "codecs";
    case Reason::kGain:
      return "gain";
    case Reason::kUnconfirmed:
      return "gain to be confirmed";
    case Reason::kNoGain:
      return "no gain";
    case Reason::kUnknownLink:
      return "link not measured yet";
    case Reason::kNoSteps:
      return "no step measured yet";
    case Reason::kOnTrial:
      return "on trial";
    case Reason::kRollback:
      return "rollback";
    case Reason::kAdopted:
      return "adopted";
    case Reason::kRejected:
      return "rejected";
    case Reason::kRestarted:
      return "restarted";
    case Reason::kObjection:
      return "the plan stays";
    case Reason::kPlannerFailed:
      return "planner failed";
  }
  return "unknown";
}

std::string to_string(const DecisionRecord& record) {
  std::string text = "step " + std::to_string(record.step) + ": " + std::string(reason_name(record.reason)) +
                     ", plan " + std::to_string(record.plan_version);
  if (record.next_version != record.plan_version) {
    text += " -> " + std::to_string(record.next_version);
  }
  return text + ", measured " + ms_text(record.measured_us) + " ms, predicted " + ms_text(record.current_us) + " -> " +
         ms_text(record.predicted_us) + " ms, bound " + ms_text(record.bound_us) + " ms, profile " +
         std::to_string(record.profile_digest) + ", next plan " + std::to_string(record.next_digest);
}

Replanner::Replanner(std::shared_ptr<const Plan> first, ReplannerOptions options,
                     std::unique_ptr<CodecController> controller)
    : first_(std::move(first)),
      options_(options),
      controller_(std::move(controller)),
      current_(first_),
      profile_interval_(min_interval()),
      frozen_(options_.frozen) {
  SRT_CHECK(first_ != nullptr);
  next_version_ = first_->version() + 1;
}

bool Replanner::wants_profile(std::uint64_t step) const {
  if (frozen_ || open_) {
    return false;
  }
  const std::span<const std::uint64_t> first = controller_ ? kFirstControlled : kFirstProfiles;
  return std::ranges::find(first, step) != first.end() || (step != 0 && step % profile_interval_ == 0);
}

std::optional<Proposal> Replanner::consider(std::uint64_t step, const StepProfile& profile) {
  SRT_CHECK(!frozen_ && !open_);
  SRT_CHECK(profile.ready_us.size() == current_->tensors().size() && profile.need_us.size() == profile.ready_us.size());
  DecisionRecord record;
  record.step = step;
  record.profile_digest = digest(profile);
  record.plan_version = record.next_version = current_->version();
  record.next_digest = current_->digest();
  record.measured_us = profile.step_us;
  if (profile.objection != 0) {
    record.reason = Reason::kObjection;
    write(record);
    const auto objection = static_cast<Objection>(profile.objection);
    const bool own = objection == Objection::kRolledBack && !freeze_after_.empty();
    freeze(objection, own ? freeze_after_ : std::string(objection_text(objection)));
    return std::nullopt;
  }
  if (!profile.knows_link() || profile.step_us <= 0) {
    record.reason = profile.knows_link() ? Reason::kNoSteps : Reason::kUnknownLink;
    space_profiles(step, profile, record.reason);
    write(record);
    return std::nullopt;
  }
  record.current_us = record.predicted_us = predict(*current_, profile, options_.planner).step_us;
  record.bound_us = lower_bound_us(current_->tensors(), profile, options_.planner);
  std::optional<Proposal> proposal = control(step, profile, record);
  if (!proposal && !frozen_) {
    proposal = trial_ ? judge(profile, record) : improve(profile, record);
  }
  if (proposal) {
    record.next_version = proposal->plan->version();
    record.next_digest = proposal->plan->digest();
    record.predicted_us = proposal->predicted_us;
    proposal->bound_us = record.bound_us;
  }
  learn(profile);
  space_profiles(step, profile, record.reason);
  write(record);
  open_ = proposal;
  return proposal;
}

std::uint64_t Replanner::min_interval() const {
  return controller_ ? controller_->profile_every() : kProfileEvery;
}

// A profile and the exchange of digests after it cost two exchanges and a prediction, which matter in short steps but
// not in long ones. The time limit exists because a change of the link has to be noticed within a time, not a number of
// steps.
void Replanner::space_profiles(std::uint64_t step, const StepProfile& profile, Reason reason) {
  const bool quiet = reason == Reason::kNoGain && (!controller_ || controller_->at_rest());
  if (!quiet) {
    profile_interval_ = min_interval();
    return;
  }
  const std::uint64_t doubled = 2 * profile_interval_;
  const bool first = step < min_interval();  // steps that still warm up
  if (!first && doubled <= kMaxProfileInterval &&
      static_cast<std::int64_t>(doubled) * profile.step_us <= kMaxProfileIntervalUs) {
    profile_interval_ = doubled;
  }
}

// The policy goes before improvements of the layout, and the new plan is not put on trial: no measurement tells yet how
// long its steps should be.
std::optional<Proposal> Replanner::control(std::uint64_t step, const StepProfile& profile, DecisionRecord& record) {
  if (controller_ == nullptr) {
    return std::nullopt;
  }
  auto tensors = controller_->consider(step, profile, current_->tensors());
  if (!tensors) {
    return std::nullopt;
  }
  auto plan = plan_schedule(*tensors, mean_ ? with_link_of(*mean_, profile) : profile, options_.planner, next_version_);
  if (!plan) {
    record.reason = Reason::kPlannerFailed;
    freeze(Objection::kPlannerFailed, "the planner failed: " + plan.status().to_string());
    return std::nullopt;
  }
  record.reason = Reason::kCodecs;
  return Proposal{*plan, Reason::kCodecs, predict(**plan, profile, options_.planner).step_us, record.current_us};
}

// A slower link or a longer backward pass is not the fault of the plan, so the measurement under the previous plan is
// scaled by the ratio of its predictions now and then.
std::optional<Proposal> Replanner::judge(const StepProfile& profile, DecisionRecord& record) {
  const std::int64_t now = predict(*trial_->before, profile, options_.planner).step_us;
  const std::int64_t then = std::max<std::int64_t>(trial_->model_before_us, 1);
  const auto expected = static_cast<std::int64_t>(Wide{trial_->before_us} * std::max(now, then) / then);
  record.reason = Reason::kOnTrial;
  if (!more_by(profile.step_us, expected, kWorsePermille) || profile.step_us - expected < kWorseUs) {
    trial_.reset();
    return std::nullopt;
  }
  if (++trial_->worse < kTrialProfiles) {
    return std::nullopt;
  }
  record.reason = Reason::kRollback;
  const std::shared_ptr<const Plan>& back = controller_ ? trial_->before : first_;
  Proposal proposal{back, Reason::kRollback, predict(*back, profile, options_.planner).step_us, record.current_us};
  if (controller_) {
    return proposal;
  }
  freeze_after_ = "the new plan made steps longer: " + std::to_string(profile.step_us) + " us instead of the " +
                  std::to_string(expected) + " us expected under the previous plan";
  return proposal;
}

// Noise must not change the plan: a successor of a planned layout is computed from previous profiles, has to be better
// under the present one as well, which it has not seen, and that twice in a row.
std::optional<Proposal> Replanner::improve(const StepProfile& profile, DecisionRecord& record) {
  if (layout_stays_) {
    record.reason = Reason::kNoGain;
    return std::nullopt;
  }
  measured_us_ = profile.step_us;
  model_us_ = record.current_us;
  const bool from_first = current_ == first_;
  const bool confirmed = std::exchange(gain_before_, false) || from_first;
  auto plan = plan_schedule(current_->tensors(), mean_ ? with_link_of(*mean_, profile) : profile, options_.planner,
                            next_version_);
  if (!plan) {
    record.reason = Reason::kPlannerFailed;
    freeze(Objection::kPlannerFailed, "the planner failed: " + plan.status().to_string());
    return std::nullopt;
  }
  record.predicted_us = predict(**plan, profile, options_.planner).step_us;
  if (!less_by(record.predicted_us, record.current_us,
               from_first ? options_.first_gain_permille : options_.later_gain_permille)) {
    record.reason = Reason::kNoGain;
    return std::nullopt;
  }
  if (!confirmed) {
    gain_before_ = true;
    record.reason = Reason::kUnconfirmed;
    return std::nullopt;
  }
  record.reason = Reason::kGain;
  return Proposal{*plan, Reason::kGain, record.predicted_us, record.current_us};
}

void Replanner::learn(const StepProfile& profile) {
  if (!mean_) {
    mean_ = profile;
    return;
  }
  blend(mean_->ready_us, profile.ready_us);
  blend(mean_->need_us, profile.need_us);
  mean_->backward_us = middle(mean_->backward_us, profile.backward_us);
  mean_->forward_us = middle(mean_->forward_us, profile.forward_us);
}

std::uint64_t Replanner::proposed_digest() const {
  return open_ ? open_->plan->digest() : current_->digest();
}

std::shared_ptr<const Plan> Replanner::adopted(std::uint64_t step) {
  SRT_CHECK(open_);
  const Proposal proposal = *std::exchange(open_, std::nullopt);
  DecisionRecord record;
  record.step = step;
  record.reason = Reason::kAdopted;
  record.plan_version = current_->version();
  record.next_version = proposal.plan->version();
  record.next_digest = proposal.plan->digest();
  record.current_us = proposal.current_us;
  record.predicted_us = proposal.predicted_us;
  record.bound_us = proposal.bound_us;
  write(record);
  if (proposal.reason == Reason::kCodecs) {
    trial_.reset();
    gain_before_ = layout_stays_ = false;
    ++next_version_;
  } else if (proposal.reason == Reason::kRollback && controller_) {
    trial_.reset();
    layout_stays_ = true;
  } else if (proposal.reason == Reason::kRollback) {
    trial_.reset();
    freeze(Objection::kRolledBack, freeze_after_);
  } else {
    trial_ = Trial{measured_us_, model_us_, current_, 0};
    ++next_version_;
  }
  current_ = proposal.plan;
  return current_;
}

void Replanner::rejected(std::uint64_t step) {
  DecisionRecord record;
  record.step = step;
  record.reason = Reason::kRejected;
  record.plan_version = record.next_version = current_->version();
  record.next_digest = proposed_digest();
  write(record);
  open_.reset();
  trial_.reset();
  freeze(Objection::kRanksDiffer,
         "ranks computed different plans from the same measurements. Likely cause: they run different builds of this "
         "library; install the same one everywhere");
}

void Replanner::restart() {
  DecisionRecord record;
  record.reason = Reason::kRestarted;
  record.plan_version = current_->version();
  record.next_version = first_->version();
  record.next_digest = first_->digest();
  write(record);
  current_ = first_;
  if (controller_) {
    controller_->restart();
  } else if (open_ && open_->reason == Reason::kRollback) {
    objection_ = std::max(objection_, Objection::kRolledBack);
  }
  open_.reset();
  trial_.reset();
  mean_.reset();
  gain_before_ = layout_stays_ = false;
  profile_interval_ = min_interval();
  next_version_ = first_->version() + 1;
  frozen_ = options_.frozen;
  frozen_because_.clear();
}

const std::string& Replanner::policy_log() const {
  static const std::string kNone;
  return controller_ ? controller_->last_decision() : kNone;
}

void Replanner::write(DecisionRecord record) {
  log_.push_back(record);
  if (log_.size() > kMaxLog) {
    log_.pop_front();
  }
}

void Replanner::freeze(Objection objection, std::string why) {
  objection_ = std::max(objection_, objection);
  frozen_ = true;
  frozen_because_ = std::move(why);
}

}  // namespace sirtaki::scheduler
