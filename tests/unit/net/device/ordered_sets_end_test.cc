// OrderedDevice of process sets over fake collectives that record their launches: lost ranks, and other ends.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/net/device/ordered_sets_fixture.h"

namespace sirtaki::net {
namespace {

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

TEST_F(OrderedSetsTest, AnOrderThatFailsEndsOperationsOfAllRanks) {
  open(4);
  const Ranks ranks = {1, 2};
  open_on_all(ranks);
  start_in(1, ranks, 5);
  start_on_set(ranks, 6);
  run();
  at(3).link->send({0, OpTag(1000000), 0, kLaunchWordsCheck, 0}, std::vector<std::byte>(kLaunchWordsBytes),
                   [](const Status&) {});
  run();
  ASSERT_EQ(at(0).broken.size(), 1U);
  ASSERT_EQ(at(1).ended.size(), 1U) << "the other one is on the device";
  EXPECT_EQ(at(1).ended[0].status.code(), Code::kPeerLost);
  EXPECT_EQ(at(1).ended[0].status.blame().rank, 0);
  EXPECT_NE(at(1).ended[0].status.text().find("orders no operations"), std::string_view::npos) << "it is not gone";
  start_in(2, ranks, 7);
  run();
  EXPECT_EQ(at(2).ended.at(0).status.blame().rank, 0);
  finish_all();
  run();
  EXPECT_TRUE(at(1).ended.at(1).status.ok());
  EXPECT_TRUE(at(1).broken.empty() && at(2).broken.empty() && at(3).broken.empty());
}

// Words that rank 0 cannot have said.
TEST_F(OrderedSetsTest, GroupsOfDifferentSetsAreCorrupt) {
  open(2);
  open_on_all({0, 1});
  start_in(1, {0, 1}, 5);
  start(1, 6);
  run();
  say_to_1({{Kind::kPlaced, OpTag(5), 1}, {Kind::kPlaced, OpTag(6), 0}});
  ASSERT_EQ(at(1).broken.size(), 1U);
  EXPECT_EQ(at(1).broken[0].code(), Code::kCorrupt);
}

TEST_F(OrderedSetsTest, AConnectionInAGroupIsCorrupt) {
  open(2);
  at(1).ordered->connect([](const Status& /*status*/) {});
  start(1, 6);
  run();
  say_to_1({{Kind::kPlaced, OpTag(6), 1}, {Kind::kPlaced, OpTag(1000000), 0}});
  ASSERT_EQ(at(1).broken.size(), 1U);
  EXPECT_EQ(at(1).broken[0].code(), Code::kCorrupt);
}

TEST_F(OrderedSetsTest, TheConnectionOfARankThatIsNotAbleIsCorrupt) {
  open(3);
  ask(1, {1, 2}, 0);
  say_to_1({{Kind::kConnect, OpTag(0), 0, kFirstProcessSet}});
  ASSERT_EQ(at(1).broken.size(), 1U);
  EXPECT_EQ(at(1).broken[0].code(), Code::kCorrupt);
  EXPECT_TRUE((opens_[{1, {1, 2}}].added.empty()));
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

// A rank may read the last words of rank 0 and its end together, with words of its own unsent.
TEST_F(OrderedSetsTest, AFailedSendOvertakesNoWordsOfRank0) {
  open(3);
  const Ranks ranks = {1, 2};
  open_on_all(ranks);
  for (const std::uint64_t tag : {5, 6, 7}) {
    start_in(1, ranks, tag);
  }
  run();
  at(1).link->cut = {Code::kPeerLost, "rank 0 has left", {0, ""}};
  cancel(1, 6);
  run();
  start_in(2, ranks, 5);
  start_in(2, ranks, 6);
  run();
  group_->kill(0, {Code::kAborted, "killed"});
  run();
  EXPECT_EQ(launched(1), launched(2));
  EXPECT_EQ(launched(1).size(), 3U);
  finish_all();
  run();
  ASSERT_EQ(at(1).ended.size(), 3U);
  EXPECT_EQ(at(1).ended[0].status.blame().rank, 0) << "without a place: " << at(1).ended[0].status.to_string();
  EXPECT_TRUE(at(1).ended[1].status.ok()) << at(1).ended[1].status.to_string();
  EXPECT_EQ(at(1).ended[2].status.text(), "no more of 6");
  EXPECT_TRUE(at(1).broken.empty());
}

// A set is open nowhere as long as one of its ranks has not connected, so that all may do without.
TEST_F(OrderedSetsTest, WithoutRank0SetsThatAreNotConnectedAreRefused) {
  open(4);
  ask(1, {1, 2});
  ask(1, {1, 3});
  ask(3, {1, 3});
  ask(2, {2, 3});
  ask(3, {2, 3});
  ask(1, {0, 1});
  run();
  ASSERT_EQ(at(3).inner->flying.size(), 2U);
  at(3).inner->flying[0].done({});  // of {1, 3}
  at(3).inner->flying.clear();
  run();
  group_->kill(0, {Code::kAborted, "killed"});
  run();
  ask(2, {1, 2});
  run();
  for (const auto& [rank, ranks] :
       std::vector<std::pair<Rank, Ranks>>{{1, {1, 2}}, {2, {1, 2}}, {1, {1, 3}}, {2, {2, 3}}}) {
    SCOPED_TRACE(rank);
    ASSERT_TRUE(outcome(rank, ranks).has_value());
    ASSERT_TRUE(outcome(rank, ranks)->refused.has_value()) << outcome(rank, ranks)->ended.to_string();
    EXPECT_TRUE(outcome(rank, ranks)->refused->unordered);
    EXPECT_EQ(outcome(rank, ranks)->refused->rank, 0);
  }
  EXPECT_EQ(at(1).inner->dropped.count(kFirstProcessSet), 0U);
  EXPECT_EQ(at(1).inner->dropped.count(kFirstProcessSet + 1), 1U) << "it was connecting";
  EXPECT_EQ(outcome(3, {1, 3})->ended.blame().rank, 0) << "rank 1 may have opened it";
  EXPECT_EQ(outcome(1, {0, 1})->ended.blame().rank, 0) << "rank 0 is one of them";
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
  EXPECT_TRUE(at(1).inner->tags.empty());
}

TEST_F(OrderedSetsTest, AgreementsEndAlone) {
  open(3);
  open_on_all({0, 1});
  ask(1, {1, 2});
  run();
  at(1).ordered->end_agreements({Code::kAborted, "the rank leaves"});
  run();
  EXPECT_EQ(outcome(1, {1, 2})->ended.text(), "the rank leaves");
  ask(2, {1, 2});
  run();
  EXPECT_EQ(launched(1).size(), 1U) << "connects no more";
  EXPECT_TRUE(at(1).inner->dropped.empty());
  start_on_set({0, 1}, 5);
  run();
  finish_all();
  EXPECT_TRUE(at(1).ended.at(0).status.ok()) << "other sets go on";
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

}  // namespace
}  // namespace sirtaki::net
