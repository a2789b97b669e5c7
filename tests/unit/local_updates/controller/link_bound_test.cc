#include "runtime/local_updates/controller/link_bound.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace sirtaki::local_updates {
namespace {

using Path = LinkBound::Path;

constexpr std::int64_t kRound = 16;  // steps

RoundStats measured(std::int64_t step_us, std::int64_t link_us, std::int64_t longest_us, std::int64_t stall_us = 0) {
  RoundStats stats;
  stats.step_us = step_us;
  stats.dense_us = stats.transfer_us = link_us;
  stats.longest_us = longest_us;
  stats.stall_us = stall_us;
  return stats;
}

// The learning rate at the end of a decay, as a part of the highest one.
constexpr std::int64_t kSmallRate = 0;

// Two synchronous rounds in which steps of 100 ms wait, then local ones.
LinkBound local_after(std::int64_t stall_us, const LinkOptions& options = {}, std::int64_t steps = kRound) {
  LinkBound link(options);
  for (int i = 0; i < 2; ++i) {
    link.observe(measured(100'000, 100'000 + stall_us, 0, stall_us), Mode::kSync, steps);
    EXPECT_EQ(link.path(Mode::kSync, kSmallRate), i == 0 ? Path::kSync : Path::kLocal);
  }
  return link;
}

// Local steps before the next trial; nullopt: there is none.
std::optional<std::int64_t> steps_to_trial(LinkBound& link, std::int64_t link_us) {
  for (std::int64_t steps = kRound; steps < 1'000'000; steps += kRound) {
    link.observe(measured(100'000, link_us, 0), Mode::kLocal, kRound);
    if (link.path(Mode::kLocal, kSmallRate) == Path::kTrial) {
      return steps;
    }
  }
  return std::nullopt;
}

TEST(LinkBound, StepsStaySynchronousOnOneHostUnlessNoGainIsAskedFor) {
  for (const std::int64_t gain : {0, 1, 100}) {
    LinkOptions options;
    options.one_host = true;
    options.gain_permille = gain;
    LinkBound link(options);
    for (int i = 0; i < 20; ++i) {
      link.observe(measured(100'000, 200'000, 0, 100'000), Mode::kSync, kRound);
      EXPECT_EQ(link.path(Mode::kSync, kSmallRate), gain == 0 && i > 0 ? Path::kLocal : Path::kSync) << gain;
    }
    // A checkpoint may come from several hosts.
    link.observe(measured(100'000, 200'000, 0, 100'000), Mode::kLocal, kRound);
    EXPECT_EQ(link.path(Mode::kLocal, kSmallRate), gain == 0 ? Path::kLocal : Path::kSync) << gain;
  }
}

TEST(LinkBound, StepsAndDelayFollowFromTimes) {
  struct Case {
    std::int64_t step_us;
    std::int64_t link_us;
    std::int64_t longest_us;
    std::int64_t steps;
    std::int64_t delay;
  };
  for (const Case& c : std::vector<Case>{{20'000, 100'000, 30'000, 7, 2},
                                         {20'000, 80'000, 16'000, 5, 1},
                                         {20'000, 80'001, 16'001, 6, 1},
                                         {20'000, 100, 100, 1, 1},
                                         {20'000, 0, 0, 1, 0},
                                         {300'000, 12'200'000, 1'525'000, 51, 6},
                                         {1, RoundStats::kMaxTimeUs, 1, 1'374'389'534'720, 1},
                                         {0, 500, 500, 1, 0}}) {
    LinkBound link({});
    link.observe(measured(c.step_us, c.link_us, c.longest_us), Mode::kSync, kRound);
    EXPECT_EQ(link.steps(), c.steps) << c.link_us;
    EXPECT_EQ(link.steps_with(0), c.steps) << c.link_us;
    EXPECT_EQ(link.delay(), c.delay) << c.longest_us;
  }
}

TEST(LinkBound, FallsOnlyWhenItIsWrongByAnEighth) {
  LinkBound link({});
  for (const auto& [link_us, steps] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{160'000, 20}, {144'000, 20}, {132'000, 17}}) {
    for (int i = 0; i < 50; ++i) {
      link.observe(measured(10'000, link_us, 0), Mode::kSync, kRound);
    }
    EXPECT_EQ(link.steps(), steps) << link_us;
  }
}

TEST(LinkBound, CompressedDifferencesAreMeasuredAnew) {
  LinkBound link({});
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(10'000, 160'000, 40'000), Mode::kLocal, kRound);
  }
  RoundStats stats = measured(10'000, 160'000, 10'000);
  stats.transfer_us = 40'000;
  stats.encoding = 1;
  link.observe(stats, Mode::kLocal, kRound);
  EXPECT_EQ(link.steps(), 5);
  EXPECT_EQ(link.steps_with(0), 20);
  EXPECT_EQ(link.delay(), 1);
  EXPECT_EQ(link.delay_with(0), 5);
}

TEST(LinkBound, EncodingsThatWereNotMeasuredArePredictedByTheirBits) {
  LinkBound link({});
  EXPECT_FALSE(link.is_known());
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(10'000, 640'000, 160'000), Mode::kSync, kRound);
  }
  const std::vector<std::int64_t> steps = {80, 20, 5, 3};
  const std::vector<std::int64_t> delays = {20, 5, 1, 1};
  for (std::size_t k = 0; k < steps.size(); ++k) {
    EXPECT_EQ(link.steps_with(static_cast<std::int64_t>(k)), steps[k]);
    EXPECT_EQ(link.delay_with(static_cast<std::int64_t>(k)), delays[k]);
  }
  EXPECT_EQ(link.encoding_for(80), 2) << "with more bits, merges would be late";
  EXPECT_EQ(link.encoding_for(4), 3);
  EXPECT_EQ(link.encoding_for(1), 3) << "the last one if none fits";
  // In truth, two bits take twice the time of their part.
  RoundStats stats = measured(10'000, 640'000, 20'000);
  stats.transfer_us = 80'000;
  stats.encoding = 2;
  link.observe(stats, Mode::kLocal, kRound);
  EXPECT_EQ(link.steps_with(2), 10);
  EXPECT_EQ(link.steps_with(3), 5);
  EXPECT_EQ(link.steps_with(1), 40) << "from what two bits take";
}

TEST(LinkBound, TransfersOfGradientsDoNotCorrectTheBitsOfMerges) {
  LinkBound link({});
  for (const std::int64_t encoding : {1, 0}) {
    RoundStats stats = measured(10'000, 0, 0);
    stats.encoding = encoding;
    stats.transfer_us = encoding == 0 ? 160'000 : 40'000;
    link.observe(stats, Mode::kLocal, kRound);
  }
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(10'000, 40'000, 0), Mode::kSync, kRound);
  }
  EXPECT_EQ(link.steps_with(1), 2) << "a quarter of 4 steps, with the margin";
}

// On a link with a burst, two bits take a tenth of the time of eight, not a quarter, and seem to leave room for these.
TEST(LinkBound, EncodingsThatDidNotFitAreNotTriedAgain) {
  LinkBound link({});
  std::int64_t encoding = 1;
  int changes = 0;
  for (int round = 0; round < 200; ++round) {
    RoundStats stats = measured(40'000, 0, 0);
    stats.encoding = encoding;
    stats.transfer_us = stats.longest_us = encoding == 1 ? 180'000 : 18'000;
    link.observe(stats, Mode::kLocal, 4);
    const std::int64_t next = link.encoding_for(4);
    changes += next != encoding ? 1 : 0;
    encoding = next;
  }
  EXPECT_EQ(encoding, 2);
  EXPECT_EQ(changes, 1);
  // With a link of ten times the speed they do.
  for (int round = 0; round < 200; ++round) {
    RoundStats stats = measured(40'000, 0, 0);
    stats.encoding = encoding;
    stats.transfer_us = stats.longest_us = encoding == 1 ? 18'000 : 1'800;
    link.observe(stats, Mode::kLocal, 4);
    encoding = link.encoding_for(4);
  }
  EXPECT_LE(encoding, 1);
}

// A load near a bound does not lead back and forth.
TEST(LinkBound, MoreBitsNeedAMargin) {
  for (const auto& [transfer_us, encoding] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{9'000, 2}, {7'500, 2}, {6'000, 1}}) {
    LinkBound link({});
    RoundStats stats = measured(10'000, 0, 0);
    stats.transfer_us = transfer_us;
    stats.longest_us = 2'000;
    stats.encoding = 2;
    for (int i = 0; i < 20; ++i) {
      link.observe(stats, Mode::kLocal, kRound);
    }
    EXPECT_EQ(link.encoding_for(4), encoding) << transfer_us;
  }
}

// A fragment's way as the link tells it is 0.8 of a step, in truth 1.3.
TEST(LinkBound, WaitingForMergesMakesThemComeLater) {
  LinkBound link({});
  const auto round = [&link] {
    const std::int64_t wait_us = link.delay() < 2 ? 3'000 : 0;  // in four steps
    link.observe(measured(10'000, 30'000, 8'000, wait_us / 4), Mode::kLocal, 4);
  };
  round();
  EXPECT_EQ(link.delay(), 1);
  int rounds = 0;
  int short_rounds = 0;
  for (; link.delay() < 2; ++rounds) {
    ASSERT_LT(rounds, 100);
    round();
  }
  EXPECT_GT(rounds, 3) << "once is noise";
  for (rounds = 0; rounds < 1000; ++rounds) {
    round();
    EXPECT_LE(link.delay(), 2);
    short_rounds += link.delay() < 2 ? 1 : 0;
  }
  EXPECT_LE(short_rounds, 300);
}

TEST(LinkBound, LittleWaitingIsAsGoodAsNone) {
  LinkBound link({});
  for (int i = 0; i < 1000; ++i) {
    link.observe(measured(10'000, 30'000, 8'000, 250), Mode::kLocal, 4);
    EXPECT_EQ(link.delay(), 1);
  }
}

TEST(LinkBound, OneLongWaitIsNotOfTheLink) {
  LinkBound link({});
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(10'000, 30'000, 8'000, i == 10 ? 60'000'000 : 0), Mode::kLocal, 4);
    EXPECT_EQ(link.delay(), 1);
  }
}

TEST(LinkBound, ALinkThatIsTooSlowForAnyDelayDoesNotRaiseItForEver) {
  LinkBound link({});
  for (int i = 0; i < 1000; ++i) {
    link.observe(measured(10'000, 30'000, 8'000, 50'000), Mode::kLocal, 4);
  }
  EXPECT_LE(link.delay(), 6);
}

// Earlier measurements of dense differences stay, whatever a step takes.
TEST(LinkBound, OnlyWhatTravelsNowTellsOfAFasterLink) {
  LinkBound link = local_after(2'000'000);
  for (int i = 0; i < 60; ++i) {
    RoundStats stats = measured(i < 20 ? 60'000 : 100'000, 2'100'000, 0);
    stats.transfer_us = stats.step_us * 5;
    stats.encoding = 1;
    link.observe(stats, Mode::kLocal, kRound);
    EXPECT_EQ(link.path(Mode::kLocal, kSmallRate), Path::kLocal) << i;
  }
}

TEST(LinkBound, ATrialLeavesWhatIsKnownOfCompressedDifferences) {
  LinkBound link({});
  RoundStats local = measured(10'000, 480'000, 60'000, 4'000);
  local.transfer_us = 120'000;
  local.longest_us = 15'000;
  local.encoding = 1;
  for (int i = 0; i < 20; ++i) {
    link.observe(local, Mode::kLocal, kRound);
  }
  const std::int64_t steps = link.steps();
  const std::int64_t delay = link.delay();
  link.observe(measured(10'000, 480'000, 120'000, 470'000), Mode::kSync, kRound);
  EXPECT_EQ(link.steps(), steps);
  EXPECT_EQ(link.delay(), delay);
  link.observe(measured(10'000, 0, 0), Mode::kLocal, kRound);
  EXPECT_EQ(link.steps(), steps);
}

TEST(LinkBound, TimesThatAreNotKnownSayNothing) {
  LinkBound link({});
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(10'000, 0, 0, 5'000), Mode::kSync, kRound);
  }
  link.observe(measured(10'000, 160'000, 40'000), Mode::kLocal, kRound);
  EXPECT_EQ(link.steps(), 20);
  EXPECT_EQ(link.delay(), 5);
}

TEST(LinkBound, LocalStepsAreWorthATenthOfAStep) {
  for (const std::int64_t stall_us : {0, 9'990, 10'010, 40'000}) {
    LinkBound link({});
    bool local = false;
    for (int i = 0; i < 5; ++i) {
      link.observe(measured(100'000, 60'000 + stall_us, 0, stall_us), Mode::kSync, kRound);
      local = local || link.path(Mode::kSync, kSmallRate) == Path::kLocal;
      EXPECT_FALSE(i == 0 && local) << "once is noise";
    }
    EXPECT_EQ(local, stall_us > 10'000) << stall_us;
    EXPECT_NEAR(static_cast<double>(link.cost_permille()), static_cast<double>(stall_us) / 100, 1);
  }
}

TEST(LinkBound, TrialsTakeAHundredthOfTheTime) {
  for (const std::int64_t stall_us : {20'000, 100'000, 2'000'000}) {
    // Rounds of a warm-up are shorter than a trial.
    LinkBound link = local_after(stall_us, {}, kRound / 4);
    std::int64_t steps = 0;
    for (int trial = 0; trial < 6; ++trial) {
      const auto next = steps_to_trial(link, 100'000 + stall_us);
      ASSERT_TRUE(next);
      EXPECT_GE(*next, trial < 4 ? 2 * steps : steps) << "in vain, so the next one is farther";
      steps = *next - kRound;
      const double lost = static_cast<double>(kRound) * static_cast<double>(stall_us) / 100'000;
      EXPECT_LE(lost / static_cast<double>(*next), 0.0101) << stall_us;
      EXPECT_GE(*next, 1'000);
      link.observe(measured(100'000, 100'000 + stall_us, 0, stall_us), Mode::kSync, kRound);
      EXPECT_EQ(link.path(Mode::kSync, kSmallRate), Path::kLocal) << "at once";
    }
  }
}

TEST(LinkBound, AFasterLinkIsTriedSoon) {
  LinkBound link = local_after(2'000'000);
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(100'000, 2'100'000, 0), Mode::kLocal, kRound);
    EXPECT_EQ(link.path(Mode::kLocal, kSmallRate), Path::kLocal);
  }
  EXPECT_LE(steps_to_trial(link, 8'000).value(), 32 * kRound);
  link.observe(measured(100'000, 100'000, 0, 1'000), Mode::kSync, kRound);
  EXPECT_EQ(link.path(Mode::kSync, kSmallRate), Path::kSync);
  EXPECT_EQ(link.cost_permille(), 9);
}

TEST(LinkBound, ALinkThatIsStillTooSlowIsNotTried) {
  // Steps waited for 20 times the time of a step. Ten times as fast, they would wait for two.
  LinkBound link = local_after(2'000'000);
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(100'000, 2'100'000, 0), Mode::kLocal, kRound);
    EXPECT_EQ(link.path(Mode::kLocal, 1000), Path::kLocal);
  }
  for (int i = 0; i < 40; ++i) {
    link.observe(measured(100'000, 210'000, 0), Mode::kLocal, kRound);
    EXPECT_EQ(link.path(Mode::kLocal, 1000), Path::kLocal) << i;
  }
}

TEST(LinkBound, AFasterLinkIsTriedAlsoIfMoreBitsFit) {
  constexpr std::int64_t kTwoBits = 2;
  constexpr std::int64_t kOneBit = 3;
  LinkBound link = local_after(500'000);
  const auto round = [&link](std::int64_t encoding, std::int64_t transfer_us) {
    RoundStats stats = measured(100'000, transfer_us * 8, 0);
    stats.transfer_us = transfer_us;
    stats.encoding = encoding;
    link.observe(stats, Mode::kLocal, kRound);
    return link.path(Mode::kLocal, kSmallRate);
  };
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(round(kOneBit, 320'000), Path::kLocal);
  }
  Path path = Path::kLocal;
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(round(kOneBit, 32'000), Path::kLocal) << i;
  }
  for (int i = 0; i < 10 && path == Path::kLocal; ++i) {
    path = round(kTwoBits, 64'000);
  }
  EXPECT_EQ(path, Path::kTrial);
}

TEST(LinkBound, ARateThatRisesAgainIsReasonForATrial) {
  LinkBound link = local_after(30'000);
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(100'000, 100'000, 0), Mode::kLocal, kRound);
    EXPECT_EQ(link.path(Mode::kLocal, kSmallRate), Path::kLocal);
  }
  EXPECT_EQ(link.path(Mode::kLocal, 1000), Path::kTrial) << "three tenths do not pay at the highest rate";
}

TEST(LinkBound, ALinkThatRecoversAtOnceIsNoticedToo) {
  LinkBound link = local_after(200'000);
  const auto steps = steps_to_trial(link, 20'000);
  ASSERT_TRUE(steps) << "all local rounds look alike";
  EXPECT_LE(*steps, 100 * 2 * kRound + kRound);
  link.observe(measured(100'000, 20'000, 0), Mode::kSync, kRound);
  EXPECT_EQ(link.path(Mode::kSync, kSmallRate), Path::kSync);
}

TEST(LinkBound, LocalStepsAreWorthMoreWaitingAtHighRates) {
  struct Case {
    std::int64_t factor;
    std::int64_t lr_permille;
    std::int64_t least_us;
  };
  for (const auto& [factor, lr_permille, least_us] : {Case{kRateFactorSgd, 1000, 40'000},
                                                      {kRateFactorSgd, 500, 25'000},
                                                      {kRateFactorSgd, 0, 10'000},
                                                      {kRateFactorOthers, 1000, 400'000},
                                                      {kRateFactorOthers, 500, 205'000},
                                                      {kRateFactorOthers, 0, 10'000}}) {
    for (const std::int64_t stall_us : {least_us - 1'000, least_us + 1'000}) {
      LinkOptions options;
      options.rate_factor = factor;
      LinkBound link{options};
      bool local = false;
      for (int i = 0; i < 4; ++i) {
        link.observe(measured(100'000, 100'000 + stall_us, 0, stall_us), Mode::kSync, kRound);
        local = link.path(Mode::kSync, lr_permille) == Path::kLocal;
      }
      EXPECT_EQ(local, stall_us > least_us) << factor << " " << lr_permille << " " << stall_us;
    }
  }
}

TEST(LinkBound, SynchronousStepsAreBackBelowTheBand) {
  struct Case {
    std::int64_t gain_permille;
    std::int64_t stall_us;
    Path path;
  };
  // Half of a small gain.
  for (const Case& c : {Case{100, 5'100, Path::kLocal},
                        {100, 4'900, Path::kSync},
                        {50, 2'600, Path::kLocal},
                        {50, 2'400, Path::kSync},
                        {20, 900, Path::kSync},
                        {0, 0, Path::kLocal}}) {
    LinkOptions options;
    options.gain_permille = c.gain_permille;
    LinkBound link = local_after(200'000, options);
    ASSERT_TRUE(steps_to_trial(link, 300'000));
    link.observe(measured(100'000, 100'000, 0, c.stall_us), Mode::kSync, kRound);
    EXPECT_EQ(link.path(Mode::kSync, kSmallRate), c.path) << c.gain_permille << " " << c.stall_us;
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
