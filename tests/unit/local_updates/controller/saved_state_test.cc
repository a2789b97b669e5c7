// The saved state of an interval controller: goes on as if nothing had happened, and is refused where it cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

using Saved = std::vector<std::int64_t>;

constexpr std::size_t kRanks = 4;
constexpr std::size_t kHeader = 4;  // version, ranks, fragments, options

Result<std::unique_ptr<IntervalController>> restored(const IntervalOptions& options, const Saved& saved,
                                                     std::size_t ranks = kRanks) {
  return IntervalController::restore(options, ranks, Training::kFragments, saved);
}

// Rounds of a training and of a controller that is fed the same.
void expect_the_same(Training& training, IntervalController& other, int rounds) {
  const auto decide_both = [&](const RoundStats& stats) {
    const Decision one = training.decide(stats);
    const auto two = other.decide(stats);
    ASSERT_TRUE(two) << two.status().to_string();
    EXPECT_EQ(one.digest, two->digest);
    EXPECT_EQ(one.interval, two->interval);
  };
  for (int i = 0; i < rounds; ++i) {
    decide_both(training.current().mode == Mode::kDrain ? training.drain() : training.next());
  }
}

IntervalOptions with_hook() {
  IntervalOptions options;
  options.policy = PolicyId::kCallable;
  options.warmup = 0;
  options.hook = [](const RoundStats& stats, const Interval&) { return 2 + stats.step % 7; };
  return options;
}

TEST(IntervalSaved, ItGoesOnAsIfNothingHadHappened) {
  std::vector<IntervalOptions> all = {with_hook()};
  for (const std::string text : {"auto", "auto:compress=on,warmup=0", "qsr:warmup=0", "adacomm:warmup=10",
                                 "divergence:warmup=0", "7:guard=off", "diloco", "5:delay=9"}) {
    all.push_back(options_of(text));
  }
  for (const IntervalOptions& options : all) {
    for (const int rounds : {1, 3, 30, 60}) {
      SCOPED_TRACE("policy " + std::to_string(static_cast<int>(options.policy)) + ", " + std::to_string(rounds));
      Training training(options);
      training.dense_us = 200'000;
      training.report = [](std::vector<RankReport>& ranks) { ranks[1].norm2 *= 30; };
      training.rounds(rounds);
      const Saved saved = training.controller().saved();
      auto other = restored(options, saved);
      ASSERT_TRUE(other) << other.status().to_string();
      EXPECT_EQ((*other)->saved(), saved);
      EXPECT_EQ((*other)->current(), training.current());
      expect_the_same(training, **other, 30);
      EXPECT_FALSE(restored(options, saved, kRanks + 1)) << "other ranks";
      EXPECT_FALSE(IntervalController::restore(options, kRanks, Training::kFragments + 1, saved)) << "other fragments";
      EXPECT_FALSE(restored(options, Saved(saved.begin(), saved.end() - 1)));
      EXPECT_FALSE(restored(options, {}));
    }
  }
}

// A rate that fell and came back is too high for local steps; only the state knows that it fell.
TEST(IntervalSaved, ItKnowsThatTheLearningRateFell) {
  constexpr std::size_t kFellAt = kHeader + 19;  // behind both intervals, the mode, and what leads to it
  const IntervalOptions options = options_of("auto:warmup=0,compress=on");
  Training training(options);
  training.dense_us = 200'000;
  ASSERT_EQ(training.rounds(20).interval.mode, Mode::kLocal) << "at a rate that never fell";
  ASSERT_EQ(training.controller().saved()[kFellAt], 0);
  training.set_rate(0.09);
  training.rounds(2);
  training.set_rate(0.0995);
  training.rounds(2);
  ASSERT_EQ(training.current().reason, Reason::kHighRate);
  const Saved saved = training.controller().saved();
  ASSERT_EQ(saved[kFellAt], 1);
  auto other = restored(options, saved);
  ASSERT_TRUE(other) << other.status().to_string();
  Saved forgotten = saved;
  forgotten[kFellAt] = 0;
  auto unaware = restored(options, forgotten);
  ASSERT_TRUE(unaware) << unaware.status().to_string();
  for (int i = 0; i < 20; ++i) {
    const RoundStats stats = training.next();
    const Decision one = training.decide(stats);
    EXPECT_EQ(one.interval.reason, Reason::kHighRate);
    EXPECT_EQ((*other)->decide(stats).value().digest, one.digest);
    if ((*unaware)->current().mode == Mode::kSync) {
      ASSERT_TRUE((*unaware)->decide(stats));
    }
  }
  EXPECT_EQ((*unaware)->current().mode, Mode::kLocal);
}

TEST(IntervalSaved, ItKnowsThatLocalStepsSaveLittle) {
  const IntervalOptions options = options_of("auto:warmup=0");
  Training training(options);
  training.dense_us = 31'000;
  training.local_us = 38'000;
  bool was_local = false;
  for (int i = 0; i < 40; ++i) {
    auto other = restored(options, training.controller().saved());
    ASSERT_TRUE(other) << other.status().to_string();
    was_local = was_local || training.current().mode == Mode::kLocal;
    expect_the_same(training, **other, 1);
  }
  ASSERT_TRUE(was_local);
  ASSERT_EQ(training.current().mode, Mode::kSync);
  auto other = restored(options, training.controller().saved());
  ASSERT_TRUE(other) << other.status().to_string();
  expect_the_same(training, **other, 20);
  EXPECT_EQ(training.current().mode, Mode::kSync);
}

TEST(IntervalSaved, ItBelongsToItsOptions) {
  const std::vector<std::string> texts = {"auto", "qsr", "8", "16", "8:delay=1", "8:guard=off", "auto:gain=5%"};
  for (const std::string& text : texts) {
    Training training(text);
    training.rounds(3);
    for (const std::string& other : texts) {
      EXPECT_EQ(restored(options_of(other), training.controller().saved()).ok(), text == other)
          << text << " as " << other;
    }
  }
}

// Whatever led there: the restored one takes the same events.
TEST(IntervalSaved, ItGoesOnInEveryMode) {
  using Events = std::vector<Event>;
  for (const Events& events : {Events{}, Events{Event::kWantDrain}, Events{Event::kMembersChanged},
                               Events{Event::kMembersChanged, Event::kReformed}, Events{Event::kFailed}}) {
    for (const bool asked : {false, true}) {
      SCOPED_TRACE(std::to_string(events.size()) + (asked ? " events, asked" : " events"));
      Training training("8:delay=2");
      training.rounds(4);
      for (const Event event : events) {
        ASSERT_TRUE(training.controller().happened(event));
      }
      training.controller().ask_synchronous(asked);
      auto other = restored(options_of("8:delay=2"), training.controller().saved());
      ASSERT_TRUE(other) << other.status().to_string();
      EXPECT_EQ((*other)->current(), training.current());
      EXPECT_EQ((*other)->happened(Event::kJoined).status().code(), Code::kBug) << "it goes on where it was";
      if (training.current().mode == Mode::kFailed) {
        continue;
      }
      if (training.current().mode == Mode::kReform) {
        for (IntervalController* controller : {&training.controller(), other->get()}) {
          controller->reform({0, 2, 1, -1});
          ASSERT_TRUE(controller->happened(Event::kReformed));
        }
      }
      expect_the_same(training, **other, 12);
    }
  }
}

TEST(IntervalSaved, AJobWithOtherRanksGoesOnThroughAChangeOfMembers) {
  Training training("8:delay=2");
  training.rounds(30);
  auto other = restored(options_of("8:delay=2"), training.controller().saved());
  ASSERT_TRUE(other);
  IntervalController& controller = **other;
  ASSERT_TRUE(controller.happened(Event::kMembersChanged));
  controller.reform({3, 1});
  ASSERT_TRUE(controller.happened(Event::kReformed));
  RoundStats stats;
  stats.step = training.step();
  EXPECT_EQ(controller.decide(stats).value().interval.mode, Mode::kSync);
  EXPECT_EQ(controller.happened(Event::kSteppedInSync).value().steps, 8);
  EXPECT_EQ(controller.norms(0).weigh(0, 8, std::vector<RankReport>(2)).value().weights,
            (std::vector<std::int64_t>{1, 1}));
}

// Every number at the ends of its range and beside it: an accepted state makes decisions without an error or an
// overflow.
TEST(IntervalSaved, NumbersThatCannotBeAreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::string text : {"auto:warmup=0,compress=on", "divergence:warmup=0", "adacomm:warmup=0"}) {
    const IntervalOptions options = options_of(text);
    Training training(options);
    training.dense_us = 200'000;
    training.rounds(30);
    const Saved saved = training.controller().saved();
    const RoundStats next = training.next();
    int refused = 0;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      for (const std::int64_t value :
           {-kMost - 1, std::int64_t{-1}, std::int64_t{1} << 62, kMost, saved[i] + 1, saved[i] - 1}) {
        Saved changed = saved;
        changed[i] = value;
        if (changed == saved) {
          continue;
        }
        SCOPED_TRACE(text + ", number " + std::to_string(i) + " is " + std::to_string(value));
        auto other = restored(options, changed);
        if (!other) {
          ++refused;
          EXPECT_EQ(other.status().code(), Code::kCorrupt);
          continue;
        }
        EXPECT_GE(i, kHeader);
        EXPECT_LT(std::abs(value), std::int64_t{1} << 62) << "no number is that large";
        EXPECT_EQ((*other)->saved(), changed) << "what is taken is taken as it is";
        RoundStats stats = next;
        for (int round = 0; round < 40; ++round) {
          stats.step = std::max(stats.step, next.step + 1'000 * round);
          stats.late_tags = round % 9 == 0 ? 1 : 0;
          const auto decision = (*other)->decide(stats);
          if (!decision) {
            EXPECT_EQ(decision.status().code(), Code::kCorrupt) << decision.status().to_string();
            break;
          }
        }
      }
    }
    EXPECT_GT(refused, static_cast<int>(saved.size()) * 3);
  }
}

TEST(IntervalSaved, StatesThatNothingLeadsToAreRefused) {
  // Places of fields behind the header: now (steps, delay, mode, reason, escalation, encoding), local, mode, then.
  constexpr std::size_t kStepsAt = kHeader;
  constexpr std::size_t kDelayAt = kHeader + 1;
  constexpr std::size_t kModeAt = kHeader + 2;
  constexpr std::size_t kEncodingAt = kHeader + 5;
  constexpr std::size_t kThenAt = kHeader + 13;
  const auto number = [](Mode mode) { return static_cast<std::int64_t>(mode); };
  Training training("8:delay=2");
  training.rounds(4);
  const Saved saved = training.controller().saved();
  ASSERT_EQ(saved[kStepsAt], 8);
  ASSERT_EQ(saved[kModeAt], number(Mode::kLocal));
  ASSERT_EQ(saved[kThenAt], number(Mode::kLocal));
  for (const auto& [place, value] : std::vector<std::pair<std::size_t, std::int64_t>>{{kDelayAt, 8},
                                                                                      {kEncodingAt, 1},
                                                                                      {kModeAt, number(Mode::kSync)},
                                                                                      {kThenAt, number(Mode::kReform)},
                                                                                      {kThenAt, number(Mode::kSync)}}) {
    Saved changed = saved;
    changed[place] = value;
    EXPECT_FALSE(restored(options_of("8:delay=2"), changed)) << place << " " << value;
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
