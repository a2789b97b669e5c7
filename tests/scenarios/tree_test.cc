// The scenarios over a tree of relays. Ranks must not see a difference from a job without relays.
#include <gtest/gtest.h>

#include "tests/scenarios/scale_scenarios.h"
#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/sim_expect.h"
#include "tests/world/seeds.h"
#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {
namespace {

world::SimOptions options_for(std::uint64_t seed) {
  world::SimOptions options = small_limits(seed, 3 + static_cast<int>(seed % 6));
  options.control.fanout = 2;
  if (seed % 3 == 0) {
    options.control.send_cost = std::chrono::microseconds(5);
    options.control.receive_cost = std::chrono::microseconds(10);
    options.control.item_cost = std::chrono::microseconds(1);
  }
  return options;
}

// Many ranks, the fan-out of real jobs, collectives by formula.
world::SimOptions big_options(int size) {
  world::SimOptions options = options_for(3);
  options.size = size;
  options.control.fanout = 32;
  options.min_delay = options.max_delay = std::chrono::microseconds(100);
  options.abstract_net = world::AbstractCosts{};
  return options;
}

TEST(Tree, OperationsByNameInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    expect_well(options_for(seed), named_operations(seed, 6));
  }
}

TEST(Tree, ChangingShapesAreAgreedAgain) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    expect_well(options_for(seed), changing_shapes(seed, 20));
  }
}

TEST(Tree, MismatchNamesTensorRanksAndValuesAndTheNameWorksAgain) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    Duration took{};
    expect_well(options_for(seed), mismatch_and_recover(seed, static_cast<int>(seed % 4)), &took);
    EXPECT_LT(took, std::chrono::seconds(2)) << "seed " << seed;
  }
}

TEST(Tree, ProvablyStuckIsAnErrorWithinTwoSeconds) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    Duration took{};
    expect_well(options_for(seed), stuck_and_recover(), &took);
    EXPECT_LT(took, std::chrono::seconds(2)) << "seed " << seed;
  }
}

TEST(Tree, LateRankIsWaitedForAndNamed) {
  std::vector<std::string> warnings;
  expect_well(options_for(4), late_rank(std::chrono::minutes(10)), nullptr, &warnings);
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings.front().find("rank 6 is alive but has not submitted"), std::string::npos) << warnings.front();
  EXPECT_NE(warnings.front().find("after validation"), std::string::npos) << warnings.front();
}

TEST(Tree, DeathIsReportedToAllRanksWithTheRank) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    Duration took{};
    expect_well(options_for(seed), dying_rank(static_cast<int>(seed % 5)), &took);
    EXPECT_LT(took, std::chrono::seconds(1)) << "seed " << seed;
  }
}

// Ranks that carry relays are lost and leave like any other.
TEST(Tree, ARankThatCarriesARelayMayDieOrLeave) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    const world::SimOptions options = options_for(seed);
    for (Rank who = 0; who < options.size; ++who) {
      Duration took{};
      expect_well(options, dying_rank(static_cast<int>(seed % 4), who), &took);
      EXPECT_LT(took, std::chrono::seconds(1)) << "seed " << seed << ", rank " << who;
      expect_well(options, leaving_rank(static_cast<int>(seed % 4), who));
    }
  }
}

TEST(Tree, StreamStepsAndUnusedTensors) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    expect_well(options_for(seed), stream_steps(seed, 5));
    expect_well(options_for(seed), stream_unused(seed, 6));
  }
}

TEST(Tree, DeviationsEndTheStepEverywhereAndTheStreamGoesOn) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    expect_well(options_for(seed), stream_deviations(seed, 12));
  }
}

TEST(Tree, TensorsOfAStepAreWaitedForOneByOne) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    expect_well(options_for(seed), stream_forward(seed, 4));
  }
}

TEST(Tree, RanksJoinWhenTheirDataIsOver) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    expect_well(options_for(seed), uneven_epochs(seed, 2));
    expect_well(options_for(seed), names_while_joined(seed));
    expect_well(options_for(seed), gone_while_joined(2, seed % 2 == 0));
  }
}

TEST(Tree, EverythingAtOnce) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    expect_well(options_for(seed), everything(seed, 3));
  }
}

class BigTree : public testing::TestWithParam<int> {
 protected:
  const world::SimOptions options_ = big_options(GetParam());
};

TEST_P(BigTree, FirstUse) {
  expect_well(options_, first_use(20));
}
TEST_P(BigTree, Mismatch) {
  expect_well(options_, mismatch_and_recover(2, 1));
}
TEST_P(BigTree, Stuck) {
  expect_well(options_, stuck_and_recover());
}
TEST_P(BigTree, Death) {
  expect_well(options_, dying_rank(2, 32));
}
TEST_P(BigTree, Leaving) {
  expect_well(options_, leaving_rank(2, 33));
}
TEST_P(BigTree, EveryScaleScenario) {
  for (const std::string& scenario : scale_scenarios()) {
    if (scenario != "heartbeats") {
      ScaleOptions scale;
      scale.names = scale.tensors = 20;
      EXPECT_EQ(run_scale(scenario, options_, scale).error, "") << scenario;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, BigTree, testing::Values(64, 256));

TEST(Tree, TheBusiestProcessHearsNoMoreThanItsChildrenHoweverManyRanksThereAre) {
  for (const int size : {64, 256}) {
    world::SimOptions options = big_options(size);
    world::SimWorld world(options);
    ASSERT_EQ(world.run(first_use(20)), "");
    std::uint64_t most = world.control().coordinator_traffic().received;
    for (Rank r = 0; r < size; ++r) {
      most = std::max(most, world.control().traffic(r).received);
    }
    // 20 names: a bundle or two from each child, the answers, and the merged reports of waiters.
    EXPECT_LE(most, 4U * 32U) << size << " ranks";
  }
}

TEST(Tree, TheEndOfAJobCostsARankAFewMessagesHoweverManyRanksThereAre) {
  for (const int fanout : {0, 32}) {
    for (const int size : {64, 256}) {
      world::SimOptions options = big_options(size);
      options.control.fanout = fanout;
      const ScaleResult result = run_scale("end", options, {});
      ASSERT_EQ(result.error, "");
      EXPECT_LE(result.coordinator.sent + result.coordinator.received, 3U * static_cast<unsigned>(size))
          << size << ", " << fanout;
    }
  }
}

}  // namespace
}  // namespace sirtaki::scenarios
