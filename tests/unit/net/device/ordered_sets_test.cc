// OrderedDevice of process sets over fake collectives that record their launches: agreement, and one order.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/unit/net/device/ordered_sets_fixture.h"

namespace sirtaki::net {
namespace {

TEST_F(OrderedSetsTest, OnlyRanksOfASetTakePartInIt) {
  open(3);
  const Ranks ranks = {1, 2};
  ask(1, ranks);
  run();
  EXPECT_TRUE(at(1).inner->tags.empty()) << "rank 2 has not asked";
  EXPECT_TRUE(at(1).ordered->idle()) << "nothing is on the device";
  ask(2, ranks);
  run();
  EXPECT_FALSE(at(1).ordered->idle()) << "it connects";
  const std::uint64_t connects = Recorder::kConnectTag + kFirstProcessSet;
  EXPECT_EQ(launched(1), Tags{connects});
  EXPECT_EQ(launched(2), Tags{connects});
  EXPECT_FALSE(outcome(1, ranks).has_value());
  finish_all();
  run();
  ASSERT_TRUE(outcome(1, ranks) && outcome(2, ranks));
  DeviceCollectives& set_of_2 = set(2, ranks);
  EXPECT_EQ(set_of_2.rank(), 1);
  EXPECT_EQ(set_of_2.size(), 2);
  EXPECT_EQ(set_of_2.job_rank(0), 1);
  start_on_set(ranks, 5);
  run();
  finish_all();
  EXPECT_EQ(launched(1), (Tags{connects, 5}));
  EXPECT_EQ(launched(2), (Tags{connects, 5}));
  EXPECT_TRUE(launched(0).empty());
  EXPECT_TRUE(at(1).ended.at(0).status.ok());
  EXPECT_TRUE(at(1).ordered->idle());
}

TEST_F(OrderedSetsTest, TheJobIsConnectedInTheOrderToo) {
  open(2);
  int connected = 0;
  start(0, 1);
  start(1, 1);
  run();
  for (const Rank rank : {0, 1}) {
    at(rank).ordered->connect([&](const Status& status) { connected += status.ok() ? 1 : 0; });
    start(rank, 2, -5);
  }
  run();
  EXPECT_EQ(launched(0), (Tags{1, Recorder::kConnectTag, 2}));
  EXPECT_EQ(launched(1), launched(0));
  EXPECT_EQ(at(0).inner->groups, (std::vector<Tags>{{1}, {2}}));
  finish_all();
  EXPECT_EQ(connected, 2);
}

TEST_F(OrderedSetsTest, AnErrorOfTheConnectionOfTheJobIsNoEnd) {
  open(2);
  open_on_all({0, 1});
  std::vector<Status> results;
  for (const Rank rank : {0, 1}) {
    at(rank).ordered->connect([&](Status status) { results.push_back(std::move(status)); });
  }
  run();
  for (const Rank rank : {0, 1}) {
    std::exchange(at(rank).inner->flying, {}).at(0).done(unavailable("no network"));
  }
  EXPECT_EQ(results.size(), 2U);
  start_on_set({0, 1}, 3);
  run();
  finish_all();
  for (const Rank rank : {0, 1}) {
    EXPECT_TRUE(at(rank).broken.empty());
    EXPECT_TRUE(at(rank).ended.at(0).status.ok());
  }
}

TEST_F(OrderedSetsTest, ARankThatIsNotAbleRefusesForAllOfTheSet) {
  open(3);
  ask(1, {1, 2});
  ask(2, {1, 2}, 0);
  ask(0, {0, 1});
  ask(1, {0, 1});
  run();
  finish_all();
  run();
  for (const Rank rank : {1, 2}) {
    const auto& refused = outcome(rank, {1, 2})->refused;
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->rank, 2);
    EXPECT_EQ(refused->version, 0);
    EXPECT_FALSE(refused->connecting);
  }
  EXPECT_TRUE(outcome(0, {0, 1})->device && outcome(1, {0, 1})->device) << "another set";
}

TEST_F(OrderedSetsTest, ARankThatCannotConnectRefusesForAllOfTheSet) {
  open(3);
  const Ranks ranks = {1, 2};
  ask(1, ranks);
  ask(2, ranks);
  run();
  std::exchange(at(2).inner->flying, {}).at(0).done(unavailable("no network"));
  finish_all();
  run();
  for (const Rank rank : ranks) {
    const auto& refused = outcome(rank, ranks)->refused;
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->rank, 2);
    EXPECT_TRUE(refused->connecting);
    EXPECT_EQ(at(rank).inner->dropped.count(kFirstProcessSet), 1U);
    EXPECT_TRUE(at(rank).broken.empty());
  }
}

TEST_F(OrderedSetsTest, ARankThatCannotConnectKeepsTheOthersFromWaiting) {
  open(3);
  const Ranks ranks = {1, 2};
  ask(1, ranks);
  ask(2, ranks);
  run();
  std::exchange(at(1).inner->flying, {}).at(0).done(unavailable("no network"));
  run();
  for (const Rank rank : ranks) {
    ASSERT_TRUE(outcome(rank, ranks) && outcome(rank, ranks)->refused) << "rank 2 still connects";
    EXPECT_EQ(at(rank).inner->dropped.count(kFirstProcessSet), 1U);
  }
  finish_all();
  run();
  EXPECT_TRUE(at(0).broken.empty() && at(2).broken.empty());
}

TEST_F(OrderedSetsTest, OperationsOfSetsAreWithdrawn) {
  open(3);
  const Ranks ranks = {1, 2};
  open_on_all(ranks);
  start_in(1, ranks, 5);
  run();
  set(1, ranks).cancel(OpTag(5), {Code::kAborted, "no more"});
  run();
  ASSERT_EQ(at(1).ended.size(), 1U);
  EXPECT_EQ(at(1).ended[0].status.text(), "no more");
}

TEST_F(OrderedSetsTest, OrdersOfOverlappingSetsAgreeForRandomSchedules) {
  const std::vector<Ranks> all = {{0, 1}, {1, 2}, {0, 2}, {0, 1, 2}};
  constexpr std::uint64_t kTags = 8;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    opens_.clear();
    members_.clear();
    LocalOptions slow;
    slow.delay = [&random](Rank, Rank, std::size_t) { return std::chrono::microseconds(random() % 500); };
    open(3, slow);
    for (const Ranks& ranks : all) {
      open_on_all(ranks);
    }
    for (std::size_t s = 0; s < all.size(); ++s) {
      for (const Rank rank : all[s]) {
        for (std::uint64_t tag = 1; tag <= kTags; ++tag) {
          loop_.after(std::chrono::microseconds(random() % 3000),
                      [this, rank, ranks = all[s], tag = 10 * s + tag,
                       priority = static_cast<std::int32_t>(random() % 3)] { start_in(rank, ranks, tag, priority); });
        }
      }
    }
    run();
    finish_all();
    for (const Rank one : {0, 1, 2}) {
      for (const Rank two : {0, 1, 2}) {
        Tags common = launched(one);
        const Tags other = launched(two);
        std::erase_if(common, [&](std::uint64_t tag) { return std::ranges::find(other, tag) == other.end(); });
        Tags seen = other;
        std::erase_if(seen, [&](std::uint64_t tag) { return std::ranges::find(common, tag) == common.end(); });
        EXPECT_EQ(common, seen);
      }
      EXPECT_EQ(at(one).ended.size(), 3 * kTags);
    }
  }
}

}  // namespace
}  // namespace sirtaki::net
