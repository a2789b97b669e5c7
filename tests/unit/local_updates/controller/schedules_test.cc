// Healthy trainings under all sorts of schedules, whose fragments are sent in turn, merged late or given up: nothing in
// them is an alarm, and ranks agree on every weight whenever their reports come.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

using Rate = std::function<double(std::int64_t)>;

constexpr double kHighest = 0.1;

Rate linear(std::int64_t steps) {
  return [steps](std::int64_t step) {
    return kHighest * std::max(1 - static_cast<double>(step) / static_cast<double>(steps), 0.0);
  };
}

Rate cosine(std::int64_t steps) {
  return [steps](std::int64_t step) {
    return kHighest * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps))) / 2;
  };
}

// A tenth after that step, and a hundredth after twice as many.
Rate tenths(std::int64_t step_of_change) {
  return [step_of_change](std::int64_t step) {
    const std::int64_t changes = (step - 1) / step_of_change;
    return kHighest * std::pow(0.1, static_cast<double>(changes));
  };
}

void expect_no_alarm(Training& training, std::int64_t steps) {
  training.steps_left = steps;
  while (training.step() < steps) {
    const Decision decision = training.round();
    ASSERT_TRUE(decision.alarms.empty()) << to_string(decision);
    ASSERT_TRUE(training.drained.alarms.empty()) << to_string(training.drained);
    for (const Merge& merge : training.merges()) {
      ASSERT_EQ(total_weight(merge), static_cast<std::int64_t>(training.ranks()));
    }
  }
}

TEST(IntervalSchedules, LearningRatesThatFallOrJumpAreNoAnomaly) {
  struct Case {
    std::string name;
    std::string text;
    std::int64_t steps;
    Rate rate;
  };
  std::vector<Case> cases = {
      {"linear", "qsr", 2'000, linear(2'000)},
      {"cosine", "qsr", 5'000, cosine(5'000)},
      {"cosine, fixed", "16:delay=3", 5'000, cosine(5'000)},
  };
  for (std::int64_t offset = 0; offset < 4; ++offset) {
    cases.push_back({"tenths + " + std::to_string(offset), "4", 1'500, tenths(500 + offset)});
  }
  for (const Case& c : cases) {
    for (const Growth growth : {Growth::kNoise, Growth::kMiddle, Growth::kDrift}) {
      SCOPED_TRACE(c.name + ", growth " + std::to_string(static_cast<int>(growth)));
      Training training(c.text);
      training.rate = c.rate;
      training.growth = growth;
      expect_no_alarm(training, c.steps);
    }
  }
}

// One step at the highest rate after 63 at hardly any says little of the others, so the variance may seem high once.
TEST(IntervalSchedules, ARateThatStartsAgainLeavesNobodyOut) {
  for (const Growth growth : {Growth::kNoise, Growth::kMiddle, Growth::kDrift}) {
    Training training("qsr");
    training.rate = [](std::int64_t step) { return cosine(1'000)(step % 1'000); };
    training.growth = growth;
    training.steps_left = 5'000;
    while (training.step() < 5'000) {
      for (const Alarm& alarm : training.round().alarms) {
        ASSERT_EQ(alarm.action, Action::kPullBack);
      }
      for (const Merge& merge : training.merges()) {
        ASSERT_EQ(total_weight(merge), static_cast<std::int64_t>(training.ranks()));
      }
    }
  }
}

TEST(IntervalSchedules, IntervalsThatJumpAreNoAnomaly) {
  for (const Growth growth : {Growth::kNoise, Growth::kMiddle, Growth::kDrift}) {
    SCOPED_TRACE(static_cast<int>(growth));
    Training last_step("diloco");
    last_step.growth = growth;
    expect_no_alarm(last_step, Training::kSyncSteps + 40 * 100 + 1);

    IntervalOptions options;
    options.policy = PolicyId::kCallable;
    options.most = kLongestInterval;
    options.warmup = 0;
    std::int64_t answer = 4;
    options.hook = [&](const RoundStats&, const Interval&) { return answer; };
    Training hook(options);
    hook.growth = growth;
    expect_no_alarm(hook, 400);
    answer = 400;
    expect_no_alarm(hook, 4'000);
  }
}

TEST(IntervalSchedules, MergesThatWereGivenUpAreNoAnomaly) {
  for (const Growth growth : {Growth::kNoise, Growth::kDrift}) {
    Training training("8:delay=3");
    training.growth = growth;
    training.rounds(40);
    int lost = 0;
    training.lose = [&](int fragment, std::int64_t) { return fragment == 2 && lost++ < 2; };
    std::int64_t longest = 0;
    for (int i = 0; i < 12; ++i) {
      for (const Alarm& alarm : training.round().alarms) {
        EXPECT_EQ(alarm.guard, Guard::kLate);
      }
      for (const Merge& merge : training.merges()) {
        EXPECT_EQ(total_weight(merge), 4);
        longest = std::max(longest, merge.steps);
      }
    }
    EXPECT_EQ(longest, 24) << "the next one covers their steps, too";
  }
}

// Merges take longer than it takes to the next round, whose decision may come before or after the reports: a rank that
// goes wrong while it is just about to be judged is the same for all.
TEST(IntervalSchedules, RanksAgreeWheneverTheirReportsCome) {
  for (const std::string text : {"8:delay=7", "8:delay=3", "qsr:warmup=0,base=8,delay=5", "16:delay=9"}) {
    for (int sick_from = 17; sick_from < 28; ++sick_from) {
      SCOPED_TRACE(text + ", round " + std::to_string(sick_from));
      Training early(text);
      Training late(text);
      late.weighs_late = true;
      for (int round = 0; round < 40; ++round) {
        for (Training* training : {&early, &late}) {
          training->report = [=](std::vector<RankReport>& ranks) { ranks[1].norm2 *= round >= sick_from ? 100 : 1; };
        }
        const Decision one = early.round();
        const Decision two = late.round();
        ASSERT_EQ(one.digest, two.digest) << round;
        ASSERT_EQ(one.alarms, two.alarms);
        ASSERT_EQ(early.merges().size(), late.merges().size());
        for (std::size_t i = 0; i < early.merges().size(); ++i) {
          ASSERT_EQ(early.merges()[i].weights, late.merges()[i].weights);
        }
      }
    }
  }
}

// A schedule behind steps in which the rate rises.
Rate warmed(std::int64_t steps, const Rate& then) {
  return [steps, then](std::int64_t step) {
    return step < steps ? kHighest * static_cast<double>(step) / static_cast<double>(steps) : then(step - steps);
  };
}

// Returns a training on a link that is slow enough for local steps.
Training slow(const std::string& text, const Rate& rate, std::int64_t planned) {
  Training training(text);
  training.rate = rate;
  training.dense_us = 600'000;
  training.sync_steps = 4;
  training.steps_left = planned;
  return training;
}

// Returns the highest learning rate of a local step from a step on, and 0 if there is none.
double highest_local(const std::string& text, const Rate& rate, std::int64_t from = 0, std::int64_t steps = 4'000) {
  Training training = slow(text, rate, steps);
  double highest = 0;
  while (training.step() < steps) {
    const std::int64_t begin = training.step();
    const bool local = training.current().mode == Mode::kLocal;
    training.round();
    highest = local && begin >= from ? std::max(highest, rate(begin + 1)) : highest;
  }
  return highest;
}

// Returns the steps before the first local one; `most` if there is none.
std::int64_t first_local(const std::string& text, const Rate& rate, std::int64_t planned, std::int64_t most = 4'000) {
  Training training = slow(text, rate, planned);
  while (training.current().mode != Mode::kLocal && training.step() < most) {
    training.round();
  }
  return training.step();
}

TEST(IntervalSchedules, AutoTrainsAloneOnlyAtRatesAtWhichItCostsLittle) {
  const Rate there_and_back = [](std::int64_t step) { return linear(2'000)(step <= 2'000 ? step : 4'100 - step); };
  for (const Rate& rate : {linear(4'000), cosine(4'000), there_and_back}) {
    EXPECT_NEAR(highest_local("auto:warmup=1", rate), 0.75 * kHighest, 0.02 * kHighest);
    EXPECT_NEAR(highest_local("auto:warmup=1,optimizer=adam", rate), 0.35 * kHighest, 0.02 * kHighest);
    EXPECT_GT(highest_local("auto:warmup=1,gain=0", rate), 0.76 * kHighest) << "local steps were asked for";
  }
}

// The rate of a long schedule falls by a hundredth long after the warm-up of local updates.
TEST(IntervalSchedules, AScheduleThatHasHardlyBegunToFallIsNoRest) {
  for (const std::int64_t steps : {2'000, 10'000}) {
    for (const std::int64_t rises : {0, 100}) {
      const Rate rate = warmed(rises, cosine(steps - rises));
      for (const std::string text : {"auto", "auto:warmup=1", "auto:warmup=40"}) {
        SCOPED_TRACE(text + ", " + std::to_string(steps) + " steps, " + std::to_string(rises) + " of them rise");
        EXPECT_NEAR(highest_local(text, rate, 0, steps), 0.75 * kHighest, 0.02 * kHighest);
        EXPECT_GT(first_local(text, rate, RoundStats::kUnknown, steps), steps / 4) << "the end need not be known";
      }
      EXPECT_NEAR(highest_local("auto:optimizer=adam", rate, 0, steps), 0.35 * kHighest, 0.02 * kHighest);
    }
  }
}

TEST(IntervalSchedules, AtARateThatRestsTheGainAloneDecides) {
  const Rate constant = [](std::int64_t) { return kHighest; };
  const Rate unsteady = [](std::int64_t step) { return kHighest * (1 - 1e-4 * static_cast<double>(step % 3)); };
  for (const Rate& rate : {constant, unsteady, tenths(1'000)}) {
    EXPECT_NEAR(highest_local("auto:warmup=1", rate), kHighest, 1e-3 * kHighest);
  }
}

TEST(IntervalSchedules, ARateRestsAfterAFewSteps) {
  const Rate constant = [](std::int64_t) { return kHighest; };
  EXPECT_EQ(first_local("auto:warmup=1", constant, 300), 68) << "behind the first round, in which it became known";
  EXPECT_EQ(first_local("auto", constant, 300), 68);
  EXPECT_EQ(first_local("auto:warmup=1", constant, RoundStats::kUnknown), 68);
  EXPECT_EQ(first_local("auto:warmup=1", constant, 4'000), 204) << "a twentieth of the training";
  EXPECT_EQ(first_local("auto:warmup=1,gain=0", constant, 4'000), 8) << "asked for";
  EXPECT_EQ(first_local("auto:warmup=1", warmed(100, constant), 300), 164);
  EXPECT_EQ(first_local("auto:warmup=1", tenths(100), 4'000), 104) << "low at once";
}

TEST(IntervalSchedules, ARateThatFallsAfterItsRestIsHigh) {
  constexpr std::int64_t kRest = 1'000;
  const Rate falls = [](std::int64_t step) { return cosine(4'000)(std::max<std::int64_t>(step - kRest, 0)); };
  EXPECT_EQ(highest_local("auto:warmup=1", falls), kHighest);
  EXPECT_NEAR(highest_local("auto:warmup=1", falls, kRest + 200, 5'000), 0.75 * kHighest, 0.02 * kHighest);
  const Rate by_epoch = [](std::int64_t step) { return cosine(90'000)(step / 1'000 * 1'000); };
  EXPECT_EQ(highest_local("auto:warmup=1", by_epoch, 3'000, 20'000), 0) << "the second fall is a thousandth";
}

TEST(IntervalSchedules, ATrainingWithoutAWarmUpAlreadyHasTheRateOfOneBefore) {
  const Rate constant = [](std::int64_t) { return kHighest; };
  EXPECT_LE(first_local("auto:warmup=0", constant, 100'000), 8);
}

TEST(IntervalSchedules, ARateIsKnownBeforeItRests) {
  Training training = slow(
      "auto:warmup=1", [](std::int64_t) { return kHighest; }, 4'000);
  training.edit = [&](RoundStats& stats) {
    stats.lr_pico = training.step() < 1'000 ? RoundStats::kUnknown : stats.lr_pico;
  };
  training.rounds(20);
  EXPECT_EQ(training.current().mode, Mode::kLocal) << "a rate that is unknown is none that may fall";
  Training late = slow("auto:warmup=1,optimizer=adam", cosine(4'000), 4'000);
  late.edit = [&](RoundStats& stats) { stats.lr_pico = late.step() < 300 ? RoundStats::kUnknown : stats.lr_pico; };
  while (late.step() < 400) {
    late.round();
  }
  EXPECT_EQ(late.current().mode, Mode::kSync);
}

TEST(IntervalSchedules, ARateThatHalvesIsLowEnoughForSgdOnly) {
  const Rate halves = [](std::int64_t step) { return step <= 1'000 ? kHighest : kHighest / 2; };
  EXPECT_EQ(highest_local("auto:warmup=1", halves, 1'100), kHighest / 2);
  EXPECT_EQ(highest_local("auto:warmup=1,optimizer=adam", halves, 1'100), 0);
}

}  // namespace
}  // namespace sirtaki::local_updates
