// Small worlds of ranks that launch operations of overlapping sets, in all orders of events: with one sequence for all
// sets no rank ever waits for ever; without one, or with one for each set, some order of events ends so. In some worlds
// one rank stops or dies at any time: no rank waits for ever either, but some do if a rank that stops says nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/unit/net/device/launch_world.h"
#include "tests/world/seeds.h"

namespace sirtaki::net {
namespace {

using testing::Explorer;
using testing::Fault;
using testing::Order;
using testing::Plan;
using testing::plan_of;
using testing::State;

const std::vector<std::vector<Rank>> kTriangle = {{0, 1}, {1, 2}, {0, 2}};

TEST(LaunchWorlds, WithOneSequenceNoRankWaitsForEver) {
  std::uint64_t index = 0;
  for (const Plan& plan : {
           plan_of(3, kTriangle, 1),
           plan_of(3, {{0, 1}, {0, 1, 2}}, 1),
           plan_of(3, {{0, 1}, {1, 2}}, 2),
           plan_of(4, {{0, 1}, {2, 3}}, 1),
           plan_of(4, {{1, 2}, {2, 3}, {1, 3}}, 1),
           plan_of(3, {{0, 1}, {1, 2}}, 1, true),
           plan_of(3, kTriangle, 0, true),
       }) {
    if (!world::has_case(index++)) {
      continue;
    }
    const Explorer all(plan);
    EXPECT_EQ(all.hangs(), 0);
    EXPECT_GT(all.states(), 20U);
  }
}

TEST(LaunchWorlds, WithoutASequenceRanksWaitForEver) {
  EXPECT_GT(Explorer(plan_of(3, {{0, 1}, {0, 1, 2}}, 1, false, Order::kNone)).hangs(), 0);
  EXPECT_GT(Explorer(plan_of(3, kTriangle, 1, false, Order::kNone)).hangs(), 0);
}

TEST(LaunchWorlds, WithASequenceForEachSetRanksWaitForEver) {
  EXPECT_GT(Explorer(plan_of(3, kTriangle, 1, false, Order::kOneForEachSet)).hangs(), 0);
  EXPECT_GT(Explorer(plan_of(3, {{0, 1}, {0, 1, 2}}, 1, false, Order::kOneForEachSet)).hangs(), 0);
  EXPECT_EQ(Explorer(plan_of(4, {{0, 1}, {2, 3}}, 1, false, Order::kOneForEachSet)).hangs(), 0) << "no rank in common";
}

std::vector<Plan> worlds_with(Fault fault) {
  std::vector<Plan> plans = {
      plan_of(3, {{0, 1}, {1, 2}}, 1), plan_of(3, kTriangle, 1),      plan_of(3, {{1, 2}, {0, 1, 2}}, 1),
      plan_of(4, {{1, 2}, {2, 3}}, 1), plan_of(3, {{1, 2}}, 1, true), plan_of(3, {{0, 1}, {1, 2}}, 0, true),
  };
  for (Plan& plan : plans) {
    plan.fault = fault;
  }
  return plans;
}

TEST(LaunchWorlds, ARankMayStopOrDieAtAnyTime) {
  std::uint64_t index = 0;
  for (const Fault fault : {Fault::kStop, Fault::kDie}) {
    for (const Plan& plan : worlds_with(fault)) {
      if (!world::has_case(index++)) {
        continue;
      }
      const Explorer all(plan);
      EXPECT_EQ(all.hangs(), 0);
      EXPECT_EQ(all.unfair(), 0);
      EXPECT_GT(all.states(), 100U);
    }
  }
}

TEST(LaunchWorlds, WhereARankStopsInSilenceRanksWaitForEver) {
  for (const Plan& plan : worlds_with(Fault::kStopInSilence)) {
    EXPECT_GT(Explorer(plan).hangs(), 0);
  }
}

// Worlds too large for all orders.
TEST(LaunchWorlds, WithOneSequenceRandomWorldsEnd) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(200); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int ranks = 3 + static_cast<int>(random() % 4);
    std::vector<std::vector<Rank>> sets;
    for (int i = 0; i < 5; ++i) {
      std::vector<Rank> set;
      for (Rank rank = 0; rank < ranks; ++rank) {
        if (random() % 2 == 0) {
          set.push_back(rank);
        }
      }
      if (!set.empty() && std::ranges::find(sets, set) == sets.end()) {
        sets.push_back(std::move(set));
      }
    }
    const Plan plan = plan_of(ranks, sets, 4, seed % 2 == 0);
    State state(plan);
    for (std::vector<State::Event> events = state.possible(); !events.empty(); events = state.possible()) {
      state.happen(events[random() % events.size()]);
    }
    ASSERT_TRUE(state.over());
    ASSERT_TRUE(state.fair()) << "without a fault no item fails";
  }
}

}  // namespace
}  // namespace sirtaki::net
