#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "scheduler/interval/link_bound.h"

namespace sirtaki::scheduler::interval {
namespace {

RoundStats measured(std::int64_t step_us, std::int64_t link_us, std::int64_t longest_us, std::int64_t stall_us = 0) {
  RoundStats stats;
  stats.step_us = step_us;
  stats.dense_us = stats.transfer_us = link_us;
  stats.longest_us = longest_us;
  stats.stall_us = stall_us;
  return stats;
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
                                         {20'000, 80'001, 16'001, 6, 2},
                                         {20'000, 100, 100, 1, 1},
                                         {20'000, 0, 0, 1, 0},
                                         {300'000, 12'200'000, 1'525'000, 51, 7},
                                         {1, RoundStats::kMaxTimeUs, 1, 1'374'389'534'720, 2},
                                         {0, 500, 500, 1, 0}}) {
    LinkBound link({});
    link.observe(measured(c.step_us, c.link_us, c.longest_us), Mode::kSync);
    EXPECT_EQ(link.steps(), c.steps) << c.link_us;
    EXPECT_EQ(link.dense_steps(), c.steps) << c.link_us;
    EXPECT_EQ(link.delay(), c.delay) << c.longest_us;
  }
}

TEST(LinkBound, FallsOnlyWhenItIsWrongByAnEighth) {
  LinkBound link({});
  for (int i = 0; i < 50; ++i) {
    link.observe(measured(10'000, 160'000, 0), Mode::kSync);
  }
  EXPECT_EQ(link.steps(), 20);
  for (int i = 0; i < 50; ++i) {
    link.observe(measured(10'000, 144'000, 0), Mode::kSync);
  }
  EXPECT_EQ(link.steps(), 20) << "18 would do";
  for (int i = 0; i < 50; ++i) {
    link.observe(measured(10'000, 132'000, 0), Mode::kSync);
  }
  EXPECT_EQ(link.steps(), 17);
}

TEST(LinkBound, CompressedDifferencesAreMeasuredAnew) {
  LinkBound link({});
  for (int i = 0; i < 20; ++i) {
    link.observe(measured(10'000, 160'000, 40'000), Mode::kLocal);
  }
  RoundStats stats = measured(10'000, 160'000, 10'000);
  stats.transfer_us = 40'000;
  stats.compressed = true;
  EXPECT_FALSE(link.knows_compressed());
  link.observe(stats, Mode::kLocal);
  EXPECT_TRUE(link.knows_compressed());
  EXPECT_EQ(link.steps(), 5);
  EXPECT_EQ(link.dense_steps(), 20);
  EXPECT_EQ(link.delay(), 2);
}

TEST(LinkBound, LocalStepsAreWorthATenthOfAStep) {
  for (const std::int64_t stall_us : {0, 9'990, 10'010, 40'000}) {
    LinkBound link({});
    bool local = false;
    for (int i = 0; i < 5; ++i) {
      link.observe(measured(100'000, 60'000 + stall_us, 0, stall_us), Mode::kSync);
      local = local || link.worth_local(Mode::kSync);
      EXPECT_FALSE(i == 0 && local) << "once is noise";
    }
    EXPECT_EQ(local, stall_us > 10'000) << stall_us;
  }
}

TEST(LinkBound, SynchronousStepsArePredictedFromWhatWasHidden) {
  struct Case {
    std::int64_t local_us;  // on the link for a merge, at first
    std::int64_t later_us;
    std::int64_t cost_permille;
    bool local;
  };
  // 120 ms, of which 70 ms were hidden, in steps of 100 ms.
  for (const Case& c : std::vector<Case>{{120'000, 120'000, 500, true},
                                         {120'000, 90'000, 200, true},
                                         {120'000, 76'000, 60, true},
                                         {120'000, 70'000, 0, false},
                                         {60'000, 60'000, 500, true},
                                         {60'000, 45'000, 200, true},
                                         {60'000, 30'000, 0, false}}) {
    LinkBound link({});
    for (int i = 0; i < 10; ++i) {
      link.observe(measured(100'000, 120'000, 0, 50'000), Mode::kSync);
    }
    for (int i = 0; i < 8; ++i) {
      link.observe(measured(100'000, c.local_us, 0), Mode::kLocal);
    }
    bool local = true;
    for (int i = 0; i < 80; ++i) {
      link.observe(measured(100'000, c.later_us, 0), Mode::kLocal);
      local = local && link.worth_local(Mode::kLocal);
    }
    EXPECT_NEAR(static_cast<double>(link.cost_permille(Mode::kLocal)), static_cast<double>(c.cost_permille), 2);
    EXPECT_EQ(local, c.local) << c.local_us << " to " << c.later_us;
  }
}

}  // namespace
}  // namespace sirtaki::scheduler::interval
