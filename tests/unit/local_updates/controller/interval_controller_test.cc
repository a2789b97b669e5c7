#include "runtime/local_updates/controller/interval_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

constexpr const char* kNow = ":warmup=0";

TEST(IntervalController, OneStepIsTheSynchronousPath) {
  Training training("1");
  training.dense_us = 1'000'000;
  const Decision last = training.rounds(20);
  EXPECT_EQ(last.interval, (Interval{.mode = Mode::kSync, .reason = Reason::kFixed}));
}

TEST(IntervalController, AFixedIntervalIsUsedAtOnce) {
  Training training("8:delay=2");
  const Decision first = training.round();
  EXPECT_TRUE(first.changed);
  EXPECT_EQ(first.interval.steps, 8);
  EXPECT_EQ(first.interval.delay, 2);
  EXPECT_EQ(first.interval.mode, Mode::kLocal);
  EXPECT_EQ(first.interval.reason, Reason::kFixed);
  EXPECT_FALSE(training.round().changed);
}

TEST(IntervalController, IntervalsDoubleAtMostAndShrinkAtOnce) {
  Training training(std::string("qsr") + kNow);
  EXPECT_EQ(training.round().interval.steps, 2);
  EXPECT_EQ(training.current().reason, Reason::kGrowing);
  EXPECT_EQ(training.round().interval.steps, 4);
  EXPECT_EQ(training.round().interval.steps, 4);
  EXPECT_EQ(training.current().reason, Reason::kStatistics);
  training.set_rate(0.01);
  for (const std::int64_t steps : {8, 16, 32, 64, 64}) {
    EXPECT_EQ(training.round().interval.steps, steps);
  }
  training.set_rate(0.1);
  EXPECT_EQ(training.round().interval.steps, 4);
}

TEST(IntervalController, WarmsUpForAPartOfTheTraining) {
  struct Case {
    std::int64_t planned;
    std::int64_t lr_warmup;
    std::string text;
    std::int64_t steps;
  };
  for (const Case& c : std::vector<Case>{{RoundStats::kUnknown, 0, "qsr", 208},
                                         {100'000, 0, "qsr", 512},
                                         {4'000, 0, "qsr", 208},
                                         {2'000, 0, "qsr", 112},
                                         {2'000, 300, "qsr", 304},
                                         {2'000, 300, "qsr:warmup=40", 48},
                                         {100'000, 0, "8", 16},
                                         {100'000, 0, "8:warmup=auto", 512}}) {
    IntervalOptions options = options_of(c.text);
    options.lr_warmup = c.lr_warmup;
    Training training(options);
    training.steps_left = c.planned;
    while (training.current().mode == Mode::kSync && training.step() < 1'000) {
      EXPECT_TRUE(training.step() == 0 || training.current().reason == Reason::kWarmUp);
      training.round();
    }
    EXPECT_EQ(training.step(), c.steps) << c.text << ", " << c.planned << " steps";
  }
}

// Without waits the warm-up takes a hundred steps, or 5 % of 2,000.
TEST(IntervalController, WarmUpsThatWaitAreShorter) {
  for (const auto& [dense_us, steps] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {18'000, 112}, {48'000, 64}, {108'000, 32}, {1'000'000, 32}}) {
    Training training("qsr");
    training.steps_left = 2'000;
    training.dense_us = dense_us;
    while (training.current().mode == Mode::kSync && training.step() < 1'000) {
      training.round();
    }
    EXPECT_EQ(training.step(), steps) << dense_us;
  }
  IntervalOptions options = options_of("qsr");
  options.lr_warmup = 80;
  Training training(options);
  training.steps_left = 2'000;
  training.dense_us = 1'000'000;
  while (training.current().mode == Mode::kSync && training.step() < 1'000) {
    training.round();
  }
  EXPECT_EQ(training.step(), 80) << "the schedule's own goes on";
}

TEST(IntervalController, ARisingLearningRateIsAWarmUp) {
  Training training("qsr");
  for (int i = 0; i < 40; ++i) {
    training.set_rate(0.1 + 0.001 * i);
    EXPECT_EQ(training.round().interval.reason, Reason::kWarmUp);
  }
  EXPECT_EQ(training.round().interval.mode, Mode::kLocal);
  training.set_rate(0.3);
  EXPECT_EQ(training.round().interval.mode, Mode::kLocal) << "warm once, warm for good";
}

TEST(IntervalController, ARateThatRestsForAFewStepsStillRises) {
  Training training("qsr");
  training.sync_steps = 4;
  training.steps_left = 400;
  for (int i = 0; i < 30; ++i) {
    training.set_rate(0.1 + 0.01 * (i / 3));
    EXPECT_EQ(training.round().interval.reason, Reason::kWarmUp) << i;
  }
  const std::int64_t last_rise = 28 * 4;
  EXPECT_EQ(training.round().interval.reason, Reason::kWarmUp);
  EXPECT_EQ(training.round().interval.mode, Mode::kLocal);
  EXPECT_EQ(training.step(), last_rise + 16);
}

TEST(IntervalController, TheLastRoundIsCut) {
  Training training("8:delay=3");
  training.steps_left = 16 + 8 + 3;
  EXPECT_EQ(training.round().interval.steps, 8);
  const Interval last = training.round().interval;
  EXPECT_EQ(last.steps, 3);
  EXPECT_EQ(last.delay, 2) << "merges come before the end";
  EXPECT_EQ(last.reason, Reason::kLastRound);
  training.steps_left = training.step() + 3 + 1;
  EXPECT_EQ(training.round().interval.steps, 1);
  EXPECT_EQ(training.current().mode, Mode::kLocal) << "one step is not worth a drain";
}

// Steps of 30 ms wait for 42 ms. A dense merge takes 60 ms; where that is not known, eight steps with their waits.
TEST(IntervalController, AutoBeginsNothingThatTheLastDrainWouldCost) {
  struct Case {
    std::string text;
    bool known;
    std::int64_t left;
    Mode mode;
    std::int64_t drain_encoding = 0;
  };
  for (const Case& c : std::vector<Case>{{"auto:warmup=1", true, 2, Mode::kSync},
                                         {"auto:warmup=1", true, 3, Mode::kLocal},
                                         {"auto:warmup=1", false, 27, Mode::kSync},
                                         {"auto:warmup=1", false, 28, Mode::kLocal},
                                         {"auto:warmup=1,compress=on", false, 14, Mode::kSync},
                                         {"auto:warmup=1,compress=on", false, 15, Mode::kLocal},
                                         {"auto:warmup=1,compress=on", false, 3, Mode::kSync, 1},
                                         {"auto:warmup=1,compress=on", false, 4, Mode::kLocal, 1}}) {
    constexpr std::int64_t kRests = 80;
    IntervalOptions options = options_of(c.text);
    options.link.drain_encoding = c.drain_encoding;
    Training training(options);
    training.dense_us = 60'000;
    training.steps_left = kRests + c.left;
    training.edit = [&](RoundStats& stats) {
      if (!c.known) {
        stats.dense_us = stats.transfer_us = stats.longest_us = 0;
      }
    };
    while (training.step() < kRests) {
      EXPECT_EQ(training.current().mode, Mode::kSync);
      training.round();
    }
    EXPECT_EQ(training.current().mode, c.mode) << c.text << ", " << c.left << " steps, known " << c.known;
    if (c.mode == Mode::kSync) {
      EXPECT_EQ(training.current().reason, Reason::kLastRound) << c.left;
    }
  }
}

TEST(IntervalController, AutoForgetsTheLastDrainWhereTheEndIsNotKnownOrNoGainIsAskedFor) {
  for (const std::string text : {"auto:warmup=0", "auto:warmup=0,gain=0"}) {
    Training training(text);
    training.dense_us = 60'000;
    training.steps_left = text.find("gain") == std::string::npos ? RoundStats::kUnknown : 65;
    training.rounds(4);
    EXPECT_EQ(training.current().mode, Mode::kLocal) << text;
  }
}

TEST(IntervalController, DelayHidesAFragment) {
  Training training("8");
  training.dense_us = 240'000;
  for (const auto& [longest, delay] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{125, 1}, {250, 2}, {300, 3}, {1000, 7}}) {
    training.longest_permille = longest;
    training.converge();
    EXPECT_EQ(training.current().delay, delay) << longest;
  }
}

TEST(IntervalController, AutoTakesNoMoreStepsThanTheLinkNeeds) {
  Training training("auto:warmup=0");
  training.dense_us = 120'000;
  training.converge();
  const std::int64_t needed = training.current().steps;
  training.set_rate(0.0125);
  training.converge();
  EXPECT_EQ(training.current().steps, needed) << "by its learning rate qsr would have 64 times as many";
}

TEST(IntervalController, AutoBeginsWhereTheWarmUpEnds) {
  Training training("auto:warmup=80");
  training.dense_us = 120'000;
  while (training.step() < 80) {
    EXPECT_EQ(training.current().mode, Mode::kSync);
    training.round();
  }
  EXPECT_EQ(training.current().mode, Mode::kLocal) << training.step();
}

TEST(IntervalController, AutoStopsCompressingWhenTheLinkIsFasterForGood) {
  Training training("auto:compress=on,warmup=0");
  training.dense_us = 480'000;
  training.converge();
  EXPECT_GT(training.current().encoding, 0);
  training.dense_us = 84'000;
  training.converge();
  EXPECT_GT(training.current().encoding, 0) << "nearly as many steps as without";
  training.dense_us = 60'000;
  training.converge();
  EXPECT_EQ(training.current().encoding, 0);
  EXPECT_EQ(training.current().mode, Mode::kLocal);
}

TEST(IntervalController, AutoGoesBackToSynchronousStepsThroughADrain) {
  Training training("auto:warmup=0");
  training.dense_us = 120'000;
  training.converge();
  ASSERT_EQ(training.current().mode, Mode::kLocal);
  training.dense_us = 15'000;
  int drains = 0;
  for (int i = 0; i < 100; ++i) {
    const Decision decision = training.round();
    if (decision.interval.mode == Mode::kDrain) {
      ++drains;
      EXPECT_EQ(decision.interval.reason, Reason::kTrial);
      EXPECT_EQ(decision.interval.steps, 1);
    }
  }
  EXPECT_EQ(drains, 1);
  EXPECT_EQ(training.current(), (Interval{.mode = Mode::kSync, .reason = Reason::kFastLink}));
}

TEST(IntervalController, AutoTriesSynchronousStepsRarelyAndGoesOnWhereItWas) {
  Training training("auto:warmup=0");
  training.dense_us = 480'000;
  training.converge();
  const Interval before = training.current();
  ASSERT_EQ(before.steps, 20);
  std::int64_t trials = 0;
  const std::int64_t begin = training.step();
  while (training.step() < begin + 400'000) {
    const Mode mode = training.current().mode;
    const Decision decision = training.round();
    if (decision.interval.reason == Reason::kTrial) {
      ++trials;
    } else if (mode == Mode::kSync) {
      EXPECT_EQ(decision.interval.steps, before.steps) << "without growing anew";
    }
  }
  // Steps wait 462 ms of 30 ms: 15.4 * 16 * 100 steps between two trials, eight times as many in the end.
  EXPECT_GE(trials, 2);
  EXPECT_LE(trials, 5);
}

// Synchronous steps wait for 13 ms of 43; local ones take 38 ms in place of 30.
TEST(IntervalController, AutoEndsLocalStepsThatSaveLittleAndComesBackAtASmallRate) {
  Training training("auto:warmup=0");
  training.dense_us = 31'000;
  training.local_us = 38'000;
  int trials = 0;
  int local = 0;
  while (training.step() < 1'000) {
    local += training.current().mode == Mode::kLocal ? 1 : 0;
    trials += training.round().interval.reason == Reason::kTrial ? 1 : 0;
  }
  EXPECT_EQ(trials, 1);
  EXPECT_GT(local, 8);
  EXPECT_LT(local, 20);
  EXPECT_EQ(training.current(), (Interval{.mode = Mode::kSync, .reason = Reason::kFastLink}));
  training.set_rate(0.02);
  training.rounds(3);
  EXPECT_EQ(training.current().mode, Mode::kSync);
  training.set_rate(0.005);
  training.rounds(3);
  EXPECT_EQ(training.current().mode, Mode::kLocal);
  training.rounds(40);
  EXPECT_EQ(training.current().mode, Mode::kLocal);
}

TEST(IntervalController, OneRankNeedsNoLocalSteps) {
  Training training("auto:warmup=0", 1);
  EXPECT_EQ(training.rounds(50).interval.mode, Mode::kSync);
}

TEST(IntervalController, AdaCommStartsFromTheLossAtItsFirstLocalStep) {
  Training training("adacomm:warmup=100");
  for (training.loss = 8; training.loss > 2; training.loss -= 1) {
    EXPECT_EQ(training.round().interval.mode, Mode::kSync);
  }
  EXPECT_EQ(training.rounds(3).interval.steps, 4);
  training.loss = 0.5;
  EXPECT_EQ(training.round().interval.steps, 2) << "a quarter";
  training.set_rate(0.01);
  EXPECT_EQ(training.rounds(3).interval.steps, 7) << "sqrt(16 / 4 * 10) = 6.3";
  training.edit = [](RoundStats& stats) { stats.loss_known = false; };
  const Interval unknown = training.round().interval;
  EXPECT_EQ(unknown.steps, 7);
  EXPECT_EQ(unknown.reason, Reason::kNoLoss);
}

TEST(IntervalController, AutoNeedsNoLoss) {
  Training known("auto:warmup=0,compress=on");
  Training unknown("auto:warmup=0,compress=on");
  known.dense_us = unknown.dense_us = 200'000;
  unknown.edit = [](RoundStats& stats) { stats.loss_known = false; };
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(known.round().interval, unknown.round().interval) << i;
  }
  EXPECT_EQ(unknown.current().mode, Mode::kLocal);
}

TEST(IntervalController, AdaCommSaysThatItKnowsNoLoss) {
  Training training("adacomm:warmup=0");
  training.loss = -3;
  EXPECT_EQ(training.rounds(5).interval, (Interval{.mode = Mode::kSync, .reason = Reason::kNoLoss}));
  training.loss = 3;
  EXPECT_EQ(training.rounds(5).interval.steps, 4);
}

TEST(IntervalController, DivergenceKeepsTheVarianceOfItsFirstRounds) {
  Training training("divergence:warmup=0");
  EXPECT_EQ(training.rounds(20).interval.steps, 4);
  training.set_rate(0.1 / 8);
  training.rounds(20);
  EXPECT_NEAR(static_cast<double>(training.current().steps), 64, 2)
      << "variance falls by 64, 64^(2/3) = 16 times as many steps";
  training.set_rate(0.1);
  EXPECT_EQ(training.round().interval.steps, 4) << "at once";
}

TEST(IntervalController, DivergenceForgetsASingleRound) {
  Training training("divergence:warmup=0");
  ASSERT_EQ(training.rounds(20).interval.steps, 4);
  training.report = [](std::vector<RankReport>& ranks) {
    for (RankReport& rank : ranks) {
      rank.norm2 *= 3.5;
    }
  };
  EXPECT_EQ(training.round().interval.steps, 4) << "at least the base";
  training.report = [](std::vector<RankReport>&) {};
  training.set_rate(0.1 / 8);
  EXPECT_GE(training.rounds(20).interval.steps, 62);
}

TEST(IntervalController, AFunctionOfTheProgramIsAskedAndChecked) {
  IntervalOptions options;
  options.policy = PolicyId::kCallable;
  options.warmup = 0;
  std::int64_t answer = 10;
  std::int64_t seen_step = 0;
  options.hook = [&](const RoundStats& stats, const Interval&) {
    seen_step = stats.step;
    return answer;
  };
  Training training(options);
  EXPECT_EQ(training.round().interval.steps, 10);
  EXPECT_EQ(training.current().reason, Reason::kCallable);
  EXPECT_EQ(seen_step, Training::kSyncSteps);
  answer = 100;
  EXPECT_EQ(training.round().interval.steps, 64);
  EXPECT_EQ(training.current().reason, Reason::kAtMost);
  for (const std::int64_t wrong : {std::int64_t{0}, std::int64_t{-1}, kLongestInterval + 1}) {
    answer = wrong;
    const auto decision = training.controller().decide(training.next());
    ASSERT_FALSE(decision);
    EXPECT_EQ(decision.status().code(), Code::kInvalidArgument);
    EXPECT_NE(decision.status().text().find("it must be 1 to 4096"), std::string_view::npos);
  }
}

TEST(IntervalController, TheProgramMayAskForSynchronousSteps) {
  Training training("8");
  training.round();
  training.controller().ask_synchronous(true);
  EXPECT_EQ(training.round().interval, (Interval{.mode = Mode::kDrain, .reason = Reason::kAsked}));
  EXPECT_EQ(training.current(), (Interval{.mode = Mode::kSync, .reason = Reason::kAsked}));
  training.controller().ask_synchronous(false);
  EXPECT_EQ(training.round().interval.steps, 8);
}

TEST(IntervalController, ADrainAndAChangeOfMembersLeadBack) {
  Training training("8:delay=2");
  training.round();
  IntervalController& controller = training.controller();
  EXPECT_EQ(controller.happened(Event::kWantDrain).value(), (Interval{.mode = Mode::kDrain, .reason = Reason::kDrain}));
  Interval expected{
      .steps = 8, .delay = 2, .mode = Mode::kLocal, .reason = Reason::kResumed, .escalation = Escalation::kOverlap};
  EXPECT_EQ(training.decide(training.drain()).interval, expected);
  EXPECT_EQ(controller.happened(Event::kTagAborted).value(), expected);
  EXPECT_EQ(controller.happened(Event::kMembersChanged).value().mode, Mode::kReform);
  EXPECT_EQ(controller.decide(training.drain()).status().code(), Code::kBug) << "no round ends now";
  EXPECT_EQ(controller.happened(Event::kReformed).value().mode, Mode::kDrain);
  EXPECT_EQ(training.decide(training.drain()).interval, (Interval{.mode = Mode::kSync, .reason = Reason::kMembers}));
  EXPECT_EQ(controller.happened(Event::kSteppedInSync).value(), expected);
  EXPECT_EQ(controller.happened(Event::kSteppedInSync).status().code(), Code::kBug);
  EXPECT_EQ(controller.happened(Event::kFailed).value(), (Interval{.mode = Mode::kFailed, .reason = Reason::kFailed}));
}

TEST(IntervalController, StatisticsThatCannotBeAreRefused) {
  const std::vector<std::pair<std::function<void(RoundStats&)>, std::string>> cases = {
      {[](RoundStats& s) { s.step = 1; }, "before the one before it"},
      {[](RoundStats& s) { s.step_us = -1; }, "step_us is -1; it must be 0 to"},
      {[](RoundStats& s) { s.lr_pico = -2; }, "lr_pico is -2"},
      {[](RoundStats& s) { s.digests = {1}; }, "digests of 1 ranks"},
      {[](RoundStats& s) { s.merges.at(0).ranks.pop_back(); }, "number of reports is 3; it must be 4 to 4"},
      {[](RoundStats& s) { s.merges.at(0).weights.push_back(1); }, "number of weights is 5"},
      {[](RoundStats& s) { s.merges.at(0).fragment = 4; }, "fragment is 4; it must be 0 to 3"},
      {[](RoundStats& s) { s.merges.at(0).steps = 0; }, "steps is 0"},
      {[](RoundStats& s) { s.merges.at(0).ranks[2].norm2 = -1; }, "rank 2 reports"},
      {[](RoundStats& s) { s.merges.at(0).weights[1] = 2; }, "weight of rank 1 is 2"},
      {[](RoundStats& s) { s.merges.at(0).ranks[1].norm2 = std::nan(""); }, "weight of rank 1 is 1"},
      {[](RoundStats& s) { s.merges.at(0).mean_norm2 = std::nan(""); }, "mean of a merge has a squared norm of nan"},
  };
  for (const auto& [edit, part] : cases) {
    Training training("8");
    training.rounds(2);
    RoundStats stats = training.next();
    edit(stats);
    const auto decision = training.controller().decide(stats);
    ASSERT_FALSE(decision) << part;
    EXPECT_EQ(decision.status().code(), Code::kCorrupt);
    EXPECT_NE(decision.status().text().find(part), std::string_view::npos) << decision.status().text();
  }
  EXPECT_FALSE(IntervalController::make({}, 0, 1));
  EXPECT_FALSE(IntervalController::make({}, 1, 0));
}

TEST(IntervalController, DecisionsAreReadable) {
  Training training("8:delay=2");
  training.report = [](std::vector<RankReport>& ranks) { ranks[1].norm2 = std::numeric_limits<double>::infinity(); };
  const std::string text = to_string(training.rounds(2));
  for (const char* part : {"round 1, step 24: H 8, D 2, local: fixed, overlap", "statistics 8",
                           "yellow alarm: not finite, rank 1 reset"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
