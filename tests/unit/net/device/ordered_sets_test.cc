// OrderedDevice of process sets over fake collectives that record their launches: agreement, one order, and ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "tests/unit/net/device/ordered_device_fixture.h"

namespace sirtaki::net {
namespace {

using Ranks = std::vector<Rank>;

constexpr int kVersion = 7;

class OrderedSetsTest : public OrderedDeviceTest {
 protected:
  struct Open {
    std::optional<SetOutcome> outcome;
    std::vector<LaunchSet> added;
  };

  // Lets a rank ask for a set.
  void ask(Rank rank, const Ranks& ranks, int version = kVersion) {
    Open& open = opens_[{rank, ranks}];
    at(rank).ordered->open_set(
        ranks, version, [&open](LaunchSet set) { open.added.push_back(set); },
        [&open](const SetOutcome& outcome) {
          EXPECT_FALSE(open.outcome) << "once";
          open.outcome = outcome;
        });
  }
  void open_on_all(const Ranks& ranks) {
    for (const Rank rank : ranks) {
      ask(rank, ranks);
    }
    run();
    finish_all();
    run();
    for (const Rank rank : ranks) {
      ASSERT_TRUE(outcome(rank, ranks) && outcome(rank, ranks)->device) << rank;
    }
  }
  const std::optional<SetOutcome>& outcome(Rank rank, const Ranks& ranks) { return opens_[{rank, ranks}].outcome; }
  DeviceCollectives& set(Rank rank, const Ranks& ranks) { return *outcome(rank, ranks)->device; }
  void start_in(Rank rank, const Ranks& ranks, std::uint64_t tag, std::int32_t priority = 1) {
    CollectiveArgs args;
    args.kind = OpKind::kBarrier;
    args.tag = OpTag(tag);
    args.priority = priority;
    Member& member = at(rank);
    set(rank, ranks).start(std::move(args), [&member, tag](Status status) {
      member.ended.push_back({OpTag(tag), std::move(status)});
    });
  }
  void start_on_set(const Ranks& ranks, std::uint64_t tag) {
    for (const Rank rank : ranks) {
      start_in(rank, ranks, tag);
    }
  }
  std::vector<std::uint64_t> launched(Rank rank) {
    std::vector<std::uint64_t> tags;
    for (const OpTag tag : at(rank).inner->tags) {
      tags.push_back(tag.value);
    }
    return tags;
  }

  std::map<std::pair<Rank, Ranks>, Open> opens_;
};

using Tags = std::vector<std::uint64_t>;

TEST_F(OrderedSetsTest, OnlyRanksOfASetTakePartInIt) {
  open(3);
  const Ranks ranks = {1, 2};
  ask(1, ranks);
  run();
  EXPECT_TRUE(at(1).inner->tags.empty()) << "rank 2 has not asked";
  EXPECT_FALSE(at(1).ordered->idle());
  ask(2, ranks);
  run();
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

// ---- ends ----

TEST_F(OrderedSetsTest, ALostRankEndsItsSetsOnly) {
  open(4);
  const Ranks left = {0, 1};
  const Ranks lost = {1, 3};
  open_on_all(left);
  open_on_all(lost);
  start_in(1, lost, 5);
  start_in(1, left, 6);
  ask(2, {2, 3});
  run();
  group_->kill(3, {Code::kAborted, "killed"});
  run();
  ASSERT_EQ(at(1).ended.size(), 1U);
  EXPECT_EQ(at(1).ended[0].tag, OpTag(5));
  EXPECT_EQ(at(1).ended[0].status.code(), Code::kPeerLost);
  EXPECT_EQ(at(1).ended[0].status.blame().rank, 3);
  ASSERT_TRUE(outcome(2, {2, 3}).has_value());
  EXPECT_EQ(outcome(2, {2, 3})->ended.blame().rank, 3);
  start_in(0, left, 6);
  run();
  finish_all();
  EXPECT_TRUE(at(1).ended[1].status.ok());
  start_in(1, lost, 7);
  start(1, 8);
  run();
  EXPECT_EQ(at(1).ended[2].status.blame().rank, 3);
  EXPECT_EQ(at(1).ended[3].status.blame().rank, 3) << "the job has lost it, too";
  EXPECT_EQ(at(1).inner->dropped.count(kJobSet), 1U);
  EXPECT_EQ(at(1).inner->dropped.count(kFirstProcessSet + 1), 1U);
  EXPECT_EQ(at(1).inner->dropped.count(kFirstProcessSet), 0U);
  EXPECT_TRUE(at(1).inner->aborted.ok() && at(1).broken.empty());
  ask(0, {0, 3});
  run();
  EXPECT_EQ(outcome(0, {0, 3})->ended.blame().rank, 3) << "later, too";
}

TEST_F(OrderedSetsTest, ALossBeforeTheFirstSetIsNoEnd) {
  open(3);
  group_->kill(2, {Code::kAborted, "killed"});
  run();
  open_on_all({0, 1});
  start_on_set({0, 1}, 5);
  run();
  finish_all();
  for (const Rank rank : {0, 1}) {
    ASSERT_EQ(at(rank).ended.size(), 1U);
    EXPECT_TRUE(at(rank).ended[0].status.ok()) << at(rank).ended[0].status.to_string();
    EXPECT_TRUE(at(rank).inner->aborted.ok());
  }
}

TEST_F(OrderedSetsTest, WorkThatALostRankLeavesOnTheDeviceEndsEverything) {
  open(4);
  open_on_all({0, 1});
  open_on_all({0, 2});
  open_on_all({1, 3});
  start_on_set({1, 3}, 5);
  run();
  start_on_set({0, 1}, 6);
  run();
  group_->kill(3, {Code::kAborted, "killed"});
  run();
  EXPECT_TRUE(at(1).inner->aborted.ok()) << "its work may end yet";
  EXPECT_EQ(at(1).ended.size(), 0U);
  ASSERT_EQ(at(1).inner->flying.size(), 2U);
  // The inner collectives give it up, and end all of their work.
  const Status stuck(Code::kPeerLost, "still on the device", {3, ""});
  for (Recorder::Launch& launch : std::exchange(at(1).inner->flying, {})) {
    launch.done(stuck);
  }
  run();
  EXPECT_EQ(at(1).inner->aborted.text(), "still on the device");
  EXPECT_EQ(at(1).ended.size(), 2U);
  EXPECT_TRUE(at(1).broken.empty());
  EXPECT_TRUE(at(0).inner->aborted.ok()) << "nothing of the lost rank is on its device";
  EXPECT_EQ(at(0).inner->dropped.at(kFirstProcessSet).blame().rank, 1) << "which launches nothing any more";
  EXPECT_EQ(at(0).inner->dropped.count(kFirstProcessSet + 1), 0U) << "without it";
  start_in(0, {0, 1}, 7);
  start_on_set({0, 2}, 8);
  run();
  EXPECT_EQ(at(0).ended.at(0).tag, OpTag(7));
  EXPECT_EQ(at(0).ended.at(0).status.blame().rank, 1);
  EXPECT_EQ(launched(2).back(), 8U);
}

// Rank 1 stops at each point of an agreement with rank 2, which must not wait for ever.
TEST_F(OrderedSetsTest, ARankThatStopsEndsAgreements) {
  for (const int point : {0, 1, 2, 3}) {
    SCOPED_TRACE(point);
    opens_.clear();
    members_.clear();
    open(3);
    const Ranks ranks = {1, 2};
    ask(2, ranks);
    run();
    if (point >= 1) {
      ask(1, ranks);
    }
    if (point >= 2) {
      run();  // both connect
    }
    if (point >= 3) {
      std::exchange(at(2).inner->flying, {}).at(0).done({});
      run();
    }
    at(1).ordered->abort({Code::kAborted, "the job is over"});
    run();
    finish_all();
    run();
    ASSERT_TRUE(outcome(2, ranks).has_value());
    EXPECT_EQ(outcome(2, ranks)->device, nullptr);
    EXPECT_EQ(outcome(2, ranks)->ended.code(), Code::kPeerLost);
    EXPECT_EQ(outcome(2, ranks)->ended.blame().rank, 1);
  }
}

TEST_F(OrderedSetsTest, WhereRank0StopsOnlyItsSetsEnd) {
  open(3);
  open_on_all({0, 1});
  open_on_all({1, 2});
  start_in(1, {0, 1}, 5);
  start_in(1, {0, 1}, 6);
  run();
  at(0).ordered->abort({Code::kAborted, "the job is over"});
  cancel(1, 5);
  ask(1, {0, 1, 2});
  run();
  ASSERT_EQ(at(1).ended.size(), 2U) << "a withdrawal is answered, too";
  EXPECT_EQ(at(1).ended[1].status.code(), Code::kPeerLost);
  EXPECT_EQ(at(1).ended[1].status.blame().rank, 0);
  EXPECT_EQ(outcome(1, {0, 1, 2})->ended.blame().rank, 0);
  start_on_set({1, 2}, 7);
  run();
  finish_all();
  EXPECT_TRUE(at(1).ended.back().status.ok() && at(2).ended.back().status.ok()) << "rank 0 goes on to order them";
}

TEST_F(OrderedSetsTest, AnOrderThatFailsEndsTheJobEvenIfRank0HasStopped) {
  open(3);
  open_on_all({1, 2});
  at(0).ordered->abort({Code::kAborted, "its device is lost"});
  run();
  at(1).link->send({0, OpTag(1000000), 0, kLaunchWordsCheck, 0}, std::vector<std::byte>(kLaunchWordsBytes),
                   [](const Status&) {});
  run();
  ASSERT_EQ(at(0).broken.size(), 1U);
  EXPECT_EQ(at(0).broken[0].code(), Code::kCorrupt);
}

TEST_F(OrderedSetsTest, AnAbortThroughASetEndsEverything) {
  open(2);
  open_on_all({0, 1});
  start_in(1, {0, 1}, 5);
  start(1, 6);
  set(1, {0, 1}).abort({Code::kAborted, "test"});
  run();
  EXPECT_EQ(at(1).ended.size(), 2U);
  EXPECT_EQ(at(1).inner->aborted.text(), "test");
}

TEST_F(OrderedSetsTest, WithoutRank0AllSetsEnd) {
  open(3);
  const Ranks ranks = {1, 2};
  open_on_all(ranks);
  start_in(1, ranks, 5);
  run();
  group_->kill(0, {Code::kAborted, "killed"});
  run();
  ASSERT_EQ(at(1).ended.size(), 1U);
  EXPECT_EQ(at(1).ended[0].status.code(), Code::kPeerLost);
  EXPECT_EQ(at(1).ended[0].status.blame().rank, 0);
  EXPECT_NE(at(1).ended[0].status.text().find("orders the operations of process sets"), std::string_view::npos)
      << at(1).ended[0].status.text();
  start_in(2, ranks, 6);
  ask(2, {0, 1, 2});
  run();
  EXPECT_EQ(outcome(2, {0, 1, 2})->ended.blame().rank, 0);
  EXPECT_EQ(at(2).ended.at(0).status.blame().rank, 0);
  EXPECT_TRUE(at(1).broken.empty());
}

TEST_F(OrderedSetsTest, AnAbortAnswersThoseWhoWait) {
  open(2);
  ask(1, {0, 1});
  run();
  at(1).ordered->abort({Code::kAborted, "the job is over"});
  run();
  EXPECT_EQ(outcome(1, {0, 1})->ended.text(), "the job is over");
  ask(0, {0, 1});
  run();
  EXPECT_EQ(outcome(1, {0, 1})->ended.text(), "the job is over") << "connects no more";
}

TEST_F(OrderedSetsTest, AFailureEndsSetsAsWell) {
  open(2);
  open_on_all({0, 1});
  start_on_set({0, 1}, 5);
  run();
  std::exchange(at(1).inner->flying, {}).at(0).done(unavailable("NCCL failed"));
  run();
  ASSERT_EQ(at(1).broken.size(), 1U);
  EXPECT_EQ(at(1).broken[0].text(), "NCCL failed");
  start_in(1, {0, 1}, 6);
  run();
  EXPECT_EQ(at(1).ended.back().status.text(), "NCCL failed");
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
