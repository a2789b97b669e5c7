// The times of local steps, by which their gain is judged.
#include <gtest/gtest.h>

#include <cstdint>

#include "runtime/local_updates/controller/link_bound.h"

namespace sirtaki::local_updates {
namespace {

using Path = LinkBound::Path;

// Plays rounds on a clock. By default a synchronous step takes 18.7 ms and waits for 4.3 ms, the gain of local steps
// has to be 0.22, and they go on above 0.17.
class Timed {
 public:
  static constexpr std::int64_t kRate = 400;  // permille of the highest one
  static constexpr std::int64_t kSmall = 0;   // the rate at the end of a decay
  static constexpr std::int64_t kSteps = 4;   // steps of a local round
  static constexpr std::int64_t kRound = 16;  // steps of a synchronous one

  explicit Timed(const LinkOptions& options = {}) : link(options) {}

  LinkBound link;
  std::int64_t step_us = 18'700;
  std::int64_t stall_us = 4'300;
  std::int64_t steps = kSteps;
  std::int64_t delay = 1;
  std::int64_t encoding = 0;

  Path synchronous(std::int64_t lr_permille = kRate) {
    return round(Mode::kSync, kRound, step_us + stall_us, lr_permille);
  }
  Path local(std::int64_t wall_us) { return round(Mode::kLocal, steps, wall_us, kRate); }
  // Returns the number of rounds after which the path is `wanted`; `most` if it never is.
  int synchronous_until(Path wanted, std::int64_t lr_permille = kRate, int most = 100) {
    int rounds = 1;
    while (synchronous(lr_permille) != wanted && rounds < most) {
      ++rounds;
    }
    return rounds;
  }
  int local_until(Path wanted, std::int64_t wall_us, int most = 200) {
    int rounds = 1;
    while (local(wall_us) != wanted && rounds < most) {
      ++rounds;
    }
    return rounds;
  }
  // Makes local steps that save 0.13 of a step, and the trial that follows.
  void find_local_slow() {
    ASSERT_EQ(synchronous_until(Path::kLocal), 2);
    ASSERT_EQ(local_until(Path::kTrial, 20'300), 9);
    ASSERT_EQ(synchronous(), Path::kSync);
  }

 private:
  Path round(Mode mode, std::int64_t count, std::int64_t wall_us, std::int64_t lr_permille) {
    now_us_ += count * wall_us;
    RoundStats stats;
    stats.step_us = step_us;
    stats.stall_us = mode == Mode::kSync ? stall_us : 0;
    stats.dense_us = stats.transfer_us = 20'000;
    stats.now_us = now_us_;
    if (mode == Mode::kLocal && encoding > 0) {
      stats.encoding = encoding;
      stats.transfer_us /= 4;
    }
    link.observe(stats, mode, count, delay);
    return link.path(mode, lr_permille);
  }

  std::int64_t now_us_ = 1;
};

TEST(LocalTimes, LocalStepsThatSaveLessThanTheirWaitsEnd) {
  Timed timed;
  ASSERT_EQ(timed.synchronous_until(Path::kLocal), 2);
  timed.steps = 2;
  EXPECT_EQ(timed.local_until(Path::kTrial, 60'000, 2), 2) << "intervals still grow";
  timed.steps = Timed::kSteps;
  EXPECT_EQ(timed.local_until(Path::kTrial, 20'300), 9) << "the first begins with another interval";
  EXPECT_EQ(timed.synchronous_until(Path::kLocal, Timed::kRate, 20), 20);
  EXPECT_LE(timed.synchronous_until(Path::kLocal, Timed::kSmall), 2) << "thirteen hundredths are enough at small rates";
}

TEST(LocalTimes, LocalStepsThatSaveAsMuchAsPredictedGoOn) {
  for (const std::int64_t wall_us : {18'000, 18'700, 19'500}) {
    Timed timed;
    ASSERT_EQ(timed.synchronous_until(Path::kLocal), 2);
    EXPECT_EQ(timed.local_until(Path::kTrial, wall_us), 200) << wall_us;
  }
}

TEST(LocalTimes, AnEvaluationBetweenStepsIsNoSlowStep) {
  Timed timed;
  ASSERT_EQ(timed.synchronous_until(Path::kLocal), 2);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(timed.local(i % 3 == 0 ? 900'000 : 19'000), Path::kLocal) << i;
  }
}

TEST(LocalTimes, RoundsOfAnotherKindOrBehindADrainAreNotTimed) {
  for (const int change : {0, 1, 2, 3}) {
    Timed timed;
    ASSERT_EQ(timed.synchronous_until(Path::kLocal), 2);
    for (int i = 0; i < 60; ++i) {
      const bool odd = i / 7 % 2 != 0;
      timed.steps = Timed::kSteps + (change == 0 && odd ? 1 : 0);
      timed.delay = change == 1 && odd ? 2 : 1;
      timed.encoding = change == 2 && odd ? 1 : 0;
      ASSERT_EQ(timed.local(60'000), Path::kLocal) << change << " " << i;
      if (change == 3) {
        timed.link.interrupted();
      }
    }
  }
}

TEST(LocalTimes, SlowLocalStepsAreTriedAgainAfterAWhile) {
  Timed timed;
  timed.find_local_slow();
  const std::int64_t steps = (timed.synchronous_until(Path::kLocal) + 1) * Timed::kRound;
  EXPECT_GE(steps, 1'000);
  EXPECT_LE(steps, 1'000 + 3 * Timed::kRound);
}

TEST(LocalTimes, SlowLocalStepsAreTriedSoonOnAnotherLink) {
  Timed slower;
  slower.find_local_slow();
  slower.stall_us = 9'500;
  EXPECT_LE(slower.synchronous_until(Path::kLocal), 4);
  // A link of twice the speed, which is as slow as before later.
  Timed changing;
  changing.find_local_slow();
  changing.stall_us = 1'500;
  EXPECT_EQ(changing.synchronous_until(Path::kLocal, Timed::kRate, 10), 10);
  changing.stall_us = 4'500;
  EXPECT_LE(changing.synchronous_until(Path::kLocal), 40);
}

// All steps have become slower, which a trial shows.
TEST(LocalTimes, ATrialThatFindsSynchronousStepsSlowIsNotRepeatedAtOnce) {
  Timed timed;
  timed.stall_us = 10'000;
  ASSERT_EQ(timed.synchronous_until(Path::kLocal), 2);
  EXPECT_EQ(timed.local_until(Path::kTrial, 28'000), 9);
  timed.step_us = 28'000;
  timed.stall_us = 15'000;
  EXPECT_EQ(timed.synchronous(), Path::kLocal);
  EXPECT_EQ(timed.local_until(Path::kTrial, 42'000), 200) << "whatever they take";
}

TEST(LocalTimes, WithoutAGainLocalStepsMayTakeAnyTime) {
  LinkOptions options;
  options.gain_permille = 0;
  Timed timed(options);
  ASSERT_EQ(timed.synchronous_until(Path::kLocal), 2);
  EXPECT_EQ(timed.local_until(Path::kTrial, 90'000), 200);
}

}  // namespace
}  // namespace sirtaki::local_updates
