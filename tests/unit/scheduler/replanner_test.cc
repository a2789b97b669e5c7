#include "scheduler/replanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "tests/unit/scheduler/plan/tables.h"

namespace sirtaki::scheduler {
namespace {

Workload forward_workload() {
  Workload w = make_workload(vgg_table(), 600'000, 1000);
  w.options.forward = true;
  return w;
}

Replanner replanner_for(const Workload& w) {
  return {first_plan(w), {.planner = w.options}};
}

// The profile of a step under the plan in force, if steps take as long as the model says, times `percent`.
StepProfile measured(const Replanner& replanner, const Workload& w, std::int64_t percent = 100) {
  StepProfile profile = w.profile;
  const Prediction prediction = predict(*replanner.current(), profile, w.options);
  profile.step_us = prediction.step_us * percent / 100;
  profile.exposed_us = prediction.exposed_us;
  return profile;
}

// Adopts a plan at steps 3 and 4; the next profile is due in step 6.
void adopt_forward_plan(Replanner& replanner, const Workload& w) {
  const auto proposal = replanner.consider(3, measured(replanner, w));
  ASSERT_TRUE(proposal);
  EXPECT_EQ(replanner.adopted(4), proposal->plan);
}

std::vector<Reason> reasons(const Replanner& replanner) {
  std::vector<Reason> all;
  for (const DecisionRecord& record : replanner.log()) {
    all.push_back(record.reason);
  }
  return all;
}

TEST(Replanner, AsksForProfilesAtFixedSteps) {
  const Replanner replanner = replanner_for(forward_workload());
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 0; step < 65; ++step) {
    if (replanner.wants_profile(step)) {
      steps.push_back(step);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{3, 6, 16, 32, 48, 64}));
}

// Steps up to 128 in which a profile is wanted, of steps that last `step_us` and all look alike.
std::vector<std::uint64_t> profiled_steps(std::int64_t step_us, std::uint64_t other_at = 0) {
  Workload w = make_workload(vgg_table(), 600'000, 1000);
  Replanner replanner = replanner_for(w);
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 0; step <= 128; ++step) {
    if (!replanner.wants_profile(step)) {
      continue;
    }
    steps.push_back(step);
    StepProfile profile = measured(replanner, w);
    profile.step_us = step == other_at ? 0 : step_us;  // without a measured step nothing is known
    EXPECT_FALSE(replanner.consider(step, profile));
  }
  return steps;
}

TEST(Replanner, AsksLessOftenWhenNothingChanges) {
  EXPECT_EQ(profiled_steps(20'000), (std::vector<std::uint64_t>{3, 6, 16, 32, 64, 96, 128}));
  EXPECT_EQ(profiled_steps(600'000), (std::vector<std::uint64_t>{3, 6, 16, 32, 48, 64, 80, 96, 112, 128}))
      << "a change of the link would be followed late";
  EXPECT_EQ(profiled_steps(20'000, 64), (std::vector<std::uint64_t>{3, 6, 16, 32, 64, 80, 96, 128}));
}

TEST(Replanner, ProposesAPlanThatIsWorthIt) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  const auto first = replanner.current();
  const auto proposal = replanner.consider(3, measured(replanner, w));
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->reason, Reason::kGain);
  EXPECT_EQ(proposal->plan->version(), 2U);
  EXPECT_LT(proposal->predicted_us * 100, proposal->current_us * 80);
  EXPECT_EQ(replanner.current(), first) << "not before all ranks have it";
  EXPECT_EQ(replanner.proposed_digest(), proposal->plan->digest());
  EXPECT_FALSE(replanner.wants_profile(6)) << "while the proposal is open";
  EXPECT_EQ(replanner.adopted(4), proposal->plan);
  EXPECT_EQ(replanner.current(), proposal->plan);
  EXPECT_EQ(replanner.proposed_digest(), proposal->plan->digest());
  EXPECT_TRUE(replanner.wants_profile(6));
}

TEST(Replanner, StaysWhenTheGainIsSmall) {
  Workload w = make_workload(vgg_table(), 600'000, 1000);  // all is needed at once: the first order is as good
  Replanner replanner = replanner_for(w);
  EXPECT_FALSE(replanner.consider(3, measured(replanner, w)));
  EXPECT_EQ(reasons(replanner), std::vector<Reason>{Reason::kNoGain});
  EXPECT_GE(replanner.log().back().current_us, replanner.log().back().predicted_us);
  EXPECT_EQ(replanner.proposed_digest(), replanner.current()->digest());
}

// The gain that leaves the first plan is not enough to leave a later one, and a sufficient one has to come twice.
TEST(Replanner, LeavesALaterPlanLessReadily) {
  Workload w = make_workload(vgg_table(), 600'000, 700);
  w.options.forward = true;
  Replanner replanner = replanner_for(w);
  ASSERT_TRUE(replanner.consider(3, measured(replanner, w)));
  EXPECT_GT(replanner.log().back().predicted_us * 100, replanner.log().back().current_us * 95);
  replanner.adopted(4);
  EXPECT_FALSE(replanner.consider(6, measured(replanner, w)));  // ends the trial
  std::vector<Reason> seen;
  std::ranges::reverse(w.profile.ready_us);
  for (std::uint64_t step = 16; step <= 96 && !replanner.proposal_open(); step += 16) {
    replanner.consider(step, measured(replanner, w));
    seen.push_back(replanner.log().back().reason);
  }
  ASSERT_GE(seen.size(), 2U);
  EXPECT_EQ(seen.back(), Reason::kGain);
  EXPECT_EQ(seen[seen.size() - 2], Reason::kUnconfirmed);
}

TEST(Replanner, WaitsUntilTheLinkIsKnown) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  StepProfile profile = measured(replanner, w);
  profile.bytes_per_second = StepProfile::kUnknown;
  EXPECT_FALSE(replanner.consider(3, profile));
  EXPECT_TRUE(replanner.consider(6, measured(replanner, w)));
  EXPECT_EQ(reasons(replanner), (std::vector<Reason>{Reason::kUnknownLink, Reason::kGain}));
}

TEST(Replanner, DecidesNothingFromNoStep) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  StepProfile profile = measured(replanner, w);
  profile.step_us = profile.exposed_us = profile.backward_us = profile.forward_us = 0;
  EXPECT_FALSE(replanner.consider(3, profile));
  EXPECT_TRUE(replanner.consider(6, measured(replanner, w)));
  EXPECT_EQ(reasons(replanner), (std::vector<Reason>{Reason::kNoSteps, Reason::kGain}));
}

TEST(Replanner, LeavesAGoodPlanInForce) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  adopt_forward_plan(replanner, w);
  for (std::uint64_t step = 5; step < 1000; ++step) {
    if (replanner.wants_profile(step)) {
      EXPECT_FALSE(replanner.consider(step, measured(replanner, w))) << step;
    }
  }
  EXPECT_EQ(replanner.current()->version(), 2U);
}

// Every rank's gradients early or late by a tenth of the pass, the link by a tenth, steps by a twentieth.
StepProfile noisy(StepProfile profile, std::mt19937_64& random) {
  const auto vary = [&](std::int64_t value, std::int64_t permille) {
    return value + value * (static_cast<std::int64_t>(random() % (2 * permille + 1)) - permille) / 1000;
  };
  for (std::int64_t& ready : profile.ready_us) {
    ready = std::min(vary(ready, 100), profile.backward_us);
  }
  for (std::int64_t& need : profile.need_us) {
    need = vary(need, 100);
  }
  profile.latency_ns = vary(profile.latency_ns, 300);
  profile.bytes_per_second = vary(profile.bytes_per_second, 100);
  profile.step_us = vary(profile.step_us, 50);
  return profile;
}

TEST(Replanner, DoesNotOscillateOnNoise) {
  for (const Table& table : {vgg_table(), resnet_table(), bert_table()}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(table.name + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      Workload w = make_workload(table, 600'000, 1000);
      w.options.forward = true;
      Replanner replanner = replanner_for(w);
      for (std::uint64_t step = 0; step < 1000; ++step) {
        if (replanner.wants_profile(step) && replanner.consider(step, noisy(measured(replanner, w), random))) {
          replanner.adopted(step + 1);
        }
      }
      const auto log = reasons(replanner);
      EXPECT_LE(std::ranges::count(log, Reason::kAdopted), 3) << "in 64 profiles";
      EXPECT_EQ(std::ranges::count(log, Reason::kRollback), 0);
      EXPECT_FALSE(replanner.frozen());
      const std::int64_t step = predict(*replanner.current(), w.profile, w.options).step_us;
      EXPECT_LE(step * 92, lower_bound_us(w.tensors, w.profile, w.options) * 100);
    }
  }
}

TEST(Replanner, FollowsAChangeOfComputing) {
  Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  adopt_forward_plan(replanner, w);
  EXPECT_FALSE(replanner.consider(6, measured(replanner, w)));
  // The last layers are needed first from now on, as after a change of the model's input.
  std::ranges::reverse(w.profile.need_us);
  int profiles = 0;
  std::optional<Proposal> proposal;
  for (std::uint64_t step = 16; !proposal && step < 200; step += 16) {
    proposal = replanner.consider(step, measured(replanner, w));
    ++profiles;
  }
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->plan->version(), 3U);
  EXPECT_LE(profiles, 4);
}

TEST(Replanner, RollsBackAPlanThatMadeStepsLonger) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  const auto first = replanner.current();
  const std::int64_t before = measured(replanner, w).step_us;
  adopt_forward_plan(replanner, w);
  StepProfile bad = w.profile;
  bad.step_us = before * 108 / 100;
  EXPECT_FALSE(replanner.consider(6, bad)) << "one bad profile is no proof";
  const auto proposal = replanner.consider(16, bad);
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->reason, Reason::kRollback);
  EXPECT_EQ(proposal->plan, first);
  EXPECT_FALSE(replanner.frozen()) << "before all ranks are back";
  EXPECT_EQ(replanner.adopted(17), first);
  EXPECT_TRUE(replanner.frozen());
  EXPECT_NE(replanner.frozen_because().find(std::to_string(bad.step_us)), std::string::npos);
  EXPECT_FALSE(replanner.wants_profile(32));
  EXPECT_EQ(reasons(replanner), (std::vector<Reason>{Reason::kGain, Reason::kAdopted, Reason::kOnTrial,
                                                     Reason::kRollback, Reason::kAdopted}));
}

TEST(Replanner, BlamesNoPlanForASlowerLink) {
  Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  adopt_forward_plan(replanner, w);
  w.profile.bytes_per_second /= 3;
  for (const std::uint64_t step : {6, 16, 32, 48}) {
    if (const auto proposal = replanner.consider(step, measured(replanner, w))) {
      EXPECT_EQ(proposal->reason, Reason::kGain);
      replanner.adopted(step + 1);
    }
  }
  EXPECT_FALSE(replanner.frozen());
}

TEST(Replanner, AFastStepEndsTheTrial) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  const std::int64_t before = measured(replanner, w).step_us;
  adopt_forward_plan(replanner, w);
  StepProfile bad = w.profile;
  bad.step_us = before * 2;
  EXPECT_FALSE(replanner.consider(6, bad));
  EXPECT_FALSE(replanner.consider(16, measured(replanner, w)));
  EXPECT_FALSE(replanner.consider(32, bad));
  EXPECT_FALSE(replanner.consider(48, bad));
  EXPECT_FALSE(replanner.frozen());
}

TEST(Replanner, NoiseOfTheHostIsNoProof) {
  Workload w = make_workload(vgg_table(), 600, 1000, 100);
  w.options.forward = true;
  Replanner replanner = replanner_for(w);
  const std::int64_t before = measured(replanner, w).step_us;
  ASSERT_LT(before, 1000);
  adopt_forward_plan(replanner, w);
  StepProfile bad = w.profile;
  bad.step_us = before + 99;
  for (const std::uint64_t step : {6, 16}) {
    EXPECT_FALSE(replanner.consider(step, bad));
  }
  EXPECT_FALSE(replanner.frozen());
}

TEST(Replanner, FreezesWhenRanksDiffer) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  const auto first = replanner.current();
  ASSERT_TRUE(replanner.consider(3, measured(replanner, w)));
  replanner.rejected(4);
  EXPECT_EQ(replanner.current(), first);
  EXPECT_FALSE(replanner.proposal_open());
  EXPECT_TRUE(replanner.frozen());
  EXPECT_FALSE(replanner.wants_profile(16));
  EXPECT_NE(replanner.frozen_because().find("different plans"), std::string::npos);
  EXPECT_EQ(reasons(replanner), (std::vector<Reason>{Reason::kGain, Reason::kRejected}));
  EXPECT_THROW(replanner.consider(16, measured(replanner, w)), BugError);
  EXPECT_THROW(replanner.adopted(17), BugError);
}

TEST(Replanner, FreezesWhenThePlannerFails) {
  Workload w = forward_workload();
  const auto first = first_plan(w);
  w.options.limits.partition_bytes = 4096;
  w.options.limits.alignment = 1 << 20;
  Replanner replanner(first, {.planner = w.options});
  w.profile.step_us = 1;
  EXPECT_FALSE(replanner.consider(3, w.profile));
  EXPECT_TRUE(replanner.frozen());
  EXPECT_NE(replanner.frozen_because().find("aligned block"), std::string::npos) << replanner.frozen_because();
}

// After a step was given up ranks may have seen different numbers of exchanges; from here on they are alike again.
TEST(Replanner, RestartForgetsAllThatRanksMayDifferIn) {
  const Workload w = forward_workload();
  Replanner ahead = replanner_for(w);
  Replanner behind = replanner_for(w);
  adopt_forward_plan(ahead, w);
  ASSERT_FALSE(ahead.consider(6, measured(ahead, w)));
  ASSERT_TRUE(behind.consider(3, measured(behind, w)));
  ahead.restart();
  behind.restart();
  EXPECT_EQ(ahead.current()->digest(), behind.current()->digest());
  EXPECT_EQ(ahead.current()->version(), 1U);
  const auto a = ahead.consider(3, measured(ahead, w));
  const auto b = behind.consider(3, measured(behind, w));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->plan->digest(), b->plan->digest());
}

// Up to the proposal to go back at step 16.
void reach_rollback(Replanner& replanner, const Workload& w) {
  const std::int64_t before = measured(replanner, w).step_us;
  adopt_forward_plan(replanner, w);
  StepProfile bad = w.profile;
  bad.step_us = before * 108 / 100;
  ASSERT_FALSE(replanner.consider(6, bad));
  const auto proposal = replanner.consider(16, bad);
  ASSERT_TRUE(proposal);
  ASSERT_EQ(proposal->reason, Reason::kRollback);
}

// Returns the exchanged profile of step 3 after a step was given up.
StepProfile exchanged(const std::vector<Replanner*>& ranks, const Workload& w) {
  StepProfile profile = measured(*ranks.front(), w);
  for (const Replanner* rank : ranks) {
    profile.objection = std::max(profile.objection, static_cast<std::int64_t>(rank->objection()));
  }
  return profile;
}

// The step was over on some ranks and given up by another: these know of the rollback and that one does not.
TEST(Replanner, ARollbackOutlivesAStepGivenUpOnAllRanks) {
  const Workload w = forward_workload();
  for (const bool carried_out : {true, false}) {
    SCOPED_TRACE(carried_out);
    Replanner knows = replanner_for(w);
    Replanner behind = replanner_for(w);
    reach_rollback(knows, w);
    adopt_forward_plan(behind, w);
    ASSERT_FALSE(behind.consider(6, measured(behind, w)));
    if (carried_out) {
      knows.adopted(17);
    }
    for (Replanner* rank : {&knows, &behind}) {
      rank->restart();
      EXPECT_FALSE(rank->frozen()) << "all ranks take part in the exchange that says why";
      EXPECT_TRUE(rank->wants_profile(3));
      EXPECT_EQ(rank->current()->version(), 1U);
    }
    const StepProfile profile = exchanged({&knows, &behind}, w);
    for (Replanner* rank : {&knows, &behind}) {
      EXPECT_FALSE(rank->consider(3, profile));
      EXPECT_EQ(rank->log().back().reason, Reason::kObjection);
      EXPECT_TRUE(rank->frozen());
      EXPECT_EQ(rank->objection(), Objection::kRolledBack);
      EXPECT_NE(rank->frozen_because().find("longer"), std::string::npos) << rank->frozen_because();
    }
    EXPECT_NE(knows.frozen_because().find(" us instead of "), std::string::npos) << "it has measured it itself";
    behind.restart();
    EXPECT_FALSE(behind.consider(3, exchanged({&behind}, w))) << "from here on it knows, too";
  }
}

TEST(Replanner, RanksThatDifferedDoSoAfterAStepGivenUp) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  ASSERT_TRUE(replanner.consider(3, measured(replanner, w)));
  replanner.rejected(4);
  replanner.restart();
  EXPECT_FALSE(replanner.consider(3, exchanged({&replanner}, w)));
  EXPECT_TRUE(replanner.frozen());
  EXPECT_NE(replanner.frozen_because().find("different plans"), std::string::npos);
}

TEST(Replanner, AnOptionKeepsTheFirstPlan) {
  const Workload w = forward_workload();
  const Replanner replanner(first_plan(w), {.planner = w.options, .frozen = true});
  for (std::uint64_t step = 0; step < 100; ++step) {
    EXPECT_FALSE(replanner.wants_profile(step));
  }
  EXPECT_TRUE(replanner.frozen_because().empty());
}

TEST(Replanner, TheSameProfilesGiveTheSamePlansAndLog) {
  std::mt19937_64 random(7);
  Workload w = make_workload(bert_table(), 600'000, 1000);
  w.options.forward = true;
  Replanner original = replanner_for(w);
  std::vector<std::pair<std::uint64_t, StepProfile>> profiles;
  std::vector<std::uint64_t> plans;
  const auto run = [&](Replanner& replanner, std::uint64_t step, const StepProfile& profile) {
    if (replanner.consider(step, profile)) {
      replanner.adopted(step + 1);
    }
    return replanner.current()->digest();
  };
  for (std::uint64_t step = 0; step < 500; ++step) {
    if (step == 200) {
      w.profile.bytes_per_second /= 4;
      std::ranges::reverse(w.profile.need_us);
    }
    if (original.wants_profile(step)) {
      profiles.emplace_back(step, noisy(measured(original, w), random));
      plans.push_back(run(original, step, profiles.back().second));
    }
  }
  EXPECT_GT(original.current()->version(), 2U) << "the run has several plans";
  Replanner replay = replanner_for(w);
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    EXPECT_TRUE(replay.wants_profile(profiles[i].first));
    EXPECT_EQ(run(replay, profiles[i].first, profiles[i].second), plans[i]) << "step " << profiles[i].first;
  }
  EXPECT_EQ(replay.log(), original.log());
}

TEST(Replanner, SaysWhatItDecidedAndWhy) {
  const Workload w = forward_workload();
  Replanner replanner = replanner_for(w);
  const auto proposal = replanner.consider(3, measured(replanner, w));
  ASSERT_TRUE(proposal);
  const std::string text = to_string(replanner.log().back());
  for (const std::string& part :
       {std::string("step 3: gain"), std::string("plan 1 -> 2"), std::to_string(proposal->plan->digest()),
        std::to_string(digest(measured(replanner, w))), std::to_string(proposal->current_us / 1000),
        "bound " + std::to_string(lower_bound_us(w.tensors, w.profile, w.options) / 1000)}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_LE(replanner.log().back().bound_us, proposal->predicted_us);
  replanner.adopted(4);
  EXPECT_EQ(replanner.log().back().bound_us, proposal->bound_us);
  for (int reason = 0; reason <= static_cast<int>(Reason::kPlannerFailed); ++reason) {
    EXPECT_NE(reason_name(static_cast<Reason>(reason)), "unknown");
  }
}

TEST(Replanner, KeepsABoundedLog) {
  Workload w = make_workload({"tiny", {{100, 10, 1}}}, 1000, 1000);
  Replanner replanner = replanner_for(w);
  for (std::uint64_t step = 16; step < 16 * 400; step += 16) {
    replanner.consider(step, measured(replanner, w));
    if (replanner.proposal_open()) {
      replanner.adopted(step + 1);
    }
  }
  EXPECT_EQ(replanner.log().size(), Replanner::kMaxLog);
  EXPECT_EQ(replanner.log().back().step, 16U * 399);
  EXPECT_GT(replanner.log().front().step, 16U);
}

}  // namespace
}  // namespace sirtaki::scheduler
