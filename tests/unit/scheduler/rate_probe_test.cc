// When more is tried: how long after a change, a failure or a fall of the link, and how much more.
#include "scheduler/policies/rate_probe.h"

#include <gtest/gtest.h>

namespace sirtaki::scheduler {
namespace {

int profiles_until_due(RateProbe& probe, std::int64_t bytes_per_second) {
  for (int n = 1; n < 1000; ++n) {
    if (probe.due(bytes_per_second)) {
      return n;
    }
  }
  return 1000;
}

TEST(RateProbe, SearchesForAWhileAfterTheLinkGotSlower) {
  RateProbe probe;
  probe.lowered(100, true);
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery / 2);
  int profiles = RateProbe::kSearchEvery / 2;
  while (true) {
    probe.begin(7);
    probe.fail();
    const int wait = profiles_until_due(probe, 1'000'000);
    profiles += wait;
    if (profiles > RateProbe::kSearch) {
      EXPECT_EQ(wait, RateProbe::kShortest);
      break;
    }
    ASSERT_EQ(wait, RateProbe::kSearchEvery);
    if (profiles == RateProbe::kSearch / 2 + 2) {
      probe.raised();
      EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery) << "it goes on";
      profiles += RateProbe::kSearchEvery;
    }
  }
}

TEST(RateProbe, DoesNotSearchOnceTheRateIsWhatItWas) {
  RateProbe probe;
  probe.lowered(100, true);
  probe.begin(74);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery / 2);
  probe.begin(75);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), 2 * RateProbe::kShortest);
}

TEST(RateProbe, SearchesUpToTheRateBeforeAFallInTwoSteps) {
  RateProbe probe;
  probe.lowered(200, false);
  EXPECT_FALSE(probe.due(1'000'000));
  probe.lowered(100, true);
  probe.begin(75);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery / 2);
  probe.begin(150);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), 2 * RateProbe::kShortest) << "the search is over";
}

TEST(RateProbe, TriesAgainSoonerWhereATrialWentWell) {
  RateProbe probe;
  probe.lowered(100, true);
  probe.begin(7);
  probe.begin(10);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery / 2);
  probe.begin(10);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery);
}

TEST(RateProbe, TriesMoreHoweverSmallTheRate) {
  EXPECT_EQ(RateProbe::more_than(1000), 1401);
  EXPECT_EQ(RateProbe::more_than(1), 2);
}

TEST(RateProbe, WaitsLongerAfterEachFailureUnlessTheLinkReadsFaster) {
  RateProbe probe;
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), 8);
  for (const int wait : {16, 32, 64, 64}) {
    probe.begin(7);
    EXPECT_TRUE(probe.on());
    EXPECT_EQ(probe.fail(), 7);
    EXPECT_FALSE(probe.on());
    EXPECT_EQ(profiles_until_due(probe, 1'000'000), wait);
  }
  probe.begin(7);
  probe.fail();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(probe.due(i % 2 == 0 ? 1'000'000 : 1'100'000));
  }
  EXPECT_TRUE(probe.due(1'250'000));
  probe.raised();
  for (int i = 0; i < RateProbe::kLeast; ++i) {
    EXPECT_FALSE(probe.due(1'000'000 << i)) << "of steps before";
  }
}

}  // namespace
}  // namespace sirtaki::scheduler
