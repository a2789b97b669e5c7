#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/control/coordinator.h"
#include "tests/unit/control/ops.h"

namespace sirtaki::control {
namespace {

using std::chrono::seconds;

class Join : public testing::Test {
 protected:
  void say(Rank from, const MemberMessage& message, Duration when = seconds(0)) {
    c_.on_message(from, message, at(when));
  }
  // Returns the messages of one kind to rank `to` since the last call.
  template <class T>
  std::vector<T> sent(Rank to) {
    std::vector<T> found;
    for (const auto& send : c_.take_actions().sends) {
      const T* message = std::get_if<T>(&send.message);
      if (message != nullptr && send.to.contains(to)) {
        found.push_back(*message);
      }
    }
    return found;
  }
  void open_stream() {
    for (Rank r = 0; r < 3; ++r) {
      StreamOpen open;
      open.name = "opt";
      say(r, open);
    }
    c_.take_actions();
  }

  Coordinator c_{3, {}};
};

TEST_F(Join, OnlyThoseThatJoinBeforeTheLastStandIn) {
  say(1, Joined{});
  EXPECT_EQ(sent<StandIn>(1).size(), 1U);
  say(0, Joined{});
  EXPECT_TRUE(sent<StandIn>(1).empty());
  say(2, Joined{});
  const auto all = sent<AllJoined>(0);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].last, 2);
}

TEST_F(Join, ProcessSetsWithoutARankThatJoinedWork) {
  say(1, Joined{});
  c_.take_actions();
  say(0, Announce{"a of ranks 0, 2", 0, meta({2})});
  say(2, Announce{"a of ranks 0, 2", 0, meta({2})});
  const auto sends = c_.take_actions().sends;
  ASSERT_EQ(sends.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Agreed>(sends[0].message));
  EXPECT_EQ(sends[0].to.to_string(), "ranks 0, 2");
}

TEST_F(Join, ARankThatJoinedStandsInForWhatItHasNotSubmitted) {
  say(1, Joined{{}, {{"a of ranks 0, 1", 4}}});
  c_.take_actions();
  say(0, Announce{"a of ranks 0, 1", 4, meta({2})});
  const auto sends = c_.take_actions().sends;
  ASSERT_EQ(sends.size(), 2U);
  EXPECT_EQ(sends[0].to.to_string(), "rank 1");
  const auto* stand_in = std::get_if<StandInOp>(&sends[0].message);
  ASSERT_NE(stand_in, nullptr);
  EXPECT_EQ(stand_in->use, 4U);
  EXPECT_EQ(stand_in->meta.dims, std::vector<std::int64_t>{2});
  EXPECT_EQ(sends[1].to.to_string(), "ranks 0, 1");
  EXPECT_TRUE(std::holds_alternative<Agreed>(sends[1].message));
}

TEST_F(Join, OthersAreToldToAnnounceEveryUse) {
  say(1, Joined{{}, {{"loss", 4}}});
  const auto targeted = sent<SomeJoined>(0);
  ASSERT_EQ(targeted.size(), 1U);
  EXPECT_EQ(targeted[0].ranks, std::vector<Rank>{1});
  EXPECT_EQ(targeted[0].counts, (std::vector<Leaving::Count>{{"loss", 4}}));
}

TEST_F(Join, ABroadcastFromARankThatJoinedIsAnErrorThatNamesIt) {
  say(1, Joined{});
  c_.take_actions();
  OpMeta broadcast = meta({2}, OpKind::kBroadcast);
  broadcast.root = 1;
  say(0, Announce{"weights", 0, broadcast});
  say(2, Announce{"weights", 0, broadcast});
  for (const Coordinator::Send& send : c_.take_actions().sends) {
    const auto* cancelled = std::get_if<OpCancelled>(&send.message);
    ASSERT_NE(cancelled, nullptr);
    EXPECT_EQ(cancelled->everywhere, !send.to.contains(1));
    for (const char* word : {"rank 1", "'weights'", "root", "join()"}) {
      EXPECT_NE(cancelled->status.text().find(word), std::string_view::npos) << cancelled->status.to_string();
    }
  }
}

TEST_F(Join, HorovodsJoinRefusesWhatIsNoSum) {
  Coordinator strict(2, {}, {}, {true});
  strict.on_message(1, Joined{}, at(seconds(0)));
  strict.take_actions();
  strict.on_message(0, Announce{"gathered", 0, meta({2}, OpKind::kAllgather)}, at(seconds(0)));
  const auto refused = strict.take_actions().sends;
  ASSERT_FALSE(refused.empty());
  EXPECT_TRUE(std::holds_alternative<OpCancelled>(refused[0].message));
  strict.on_message(0, Announce{"summed", 0, meta({2})}, at(seconds(0)));
  EXPECT_TRUE(std::holds_alternative<StandInOp>(strict.take_actions().sends.at(0).message));
}

TEST_F(Join, ARootAheadOfTheOthersLeavesThemBehindItsBroadcasts) {
  say(0, Joined{{}, {{"weights", 3}}});
  say(1, Joined{{}, {{"weights", 1}}});
  c_.take_actions();
  say(2, Joined{{}, {{"weights", 1}}});
  const auto skipped = sent<OpCancelled>(1);
  ASSERT_EQ(skipped.size(), 1U);
  EXPECT_EQ(skipped[0].use, 2U);
  EXPECT_FALSE(skipped[0].everywhere);
}

TEST_F(Join, StreamsGoOnBehindTheStepThatTheLastRankNeverBegins) {
  open_stream();
  say(1, Joined{{{StreamId(1), 0, 3}}, {}});
  say(0, Joined{{{StreamId(1), 0, 5}}, {}});
  c_.take_actions();
  say(2, Joined{{{StreamId(1), 0, 8}}, {}});
  const auto all = sent<AllJoined>(1);
  ASSERT_EQ(all.size(), 1U);
  ASSERT_EQ(all[0].resets.size(), 1U);
  EXPECT_EQ(all[0].resets[0].attempt, 1U);
  EXPECT_EQ(all[0].resets[0].step, 8U);
}

TEST_F(Join, PlacesOfAnAttemptThatIsOverDoNotCount) {
  open_stream();
  say(1, Joined{{{StreamId(1), 0, 3}}, {}});
  say(2, StreamAbort{StreamId(1), 0, 4, Status(Code::kAborted, "out of memory")});
  say(2, Joined{{{StreamId(1), 1, 2}}, {}});
  c_.take_actions();
  say(0, Joined{{{StreamId(1), 0, 4}}, {}});
  const auto all = sent<AllJoined>(0);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].resets[0].attempt, 2U);
  EXPECT_EQ(all[0].resets[0].step, 2U);
}

TEST_F(Join, AnOperationInFlightWhenARankJoinsGoesOnWithoutIt) {
  say(0, Announce{"loss", 0, {}});
  say(2, Announce{"loss", 0, {}});
  c_.take_actions();
  say(1, Joined{});
  const auto sends = c_.take_actions().sends;
  const auto stands_in = [](const auto& send) { return std::holds_alternative<StandInOp>(send.message); };
  EXPECT_EQ(std::ranges::count_if(sends, stands_in), 1);
}

TEST_F(Join, ARankThatJoinedIsNotBlamedForWhatItStandsInFor) {
  say(1, Joined{});
  Waiting report;
  report.blocked = true;
  report.entries.push_back({WaitKind::kOp, "loss", 4, 5, "allreduce"});
  say(0, report);
  say(2, report);
  c_.take_actions();
  c_.on_tick(at(seconds(2)));
  EXPECT_TRUE(sent<OpCancelled>(0).empty());
  c_.on_tick(at(seconds(61)));
  c_.on_tick(at(seconds(63)));
  for (const std::string& warning : c_.take_actions().warnings) {
    EXPECT_EQ(warning.find("rank 1 "), std::string::npos) << warning;
  }
}

TEST_F(Join, WhatARankSubmittedBeforeItJoinedCompletes) {
  say(1, Announce{"loss", 0, {}});
  say(1, Joined{{}, {{"loss", 1}}});
  say(0, Announce{"loss", 0, {}});
  c_.take_actions();
  say(2, Announce{"loss", 0, {}});
  EXPECT_EQ(sent<Agreed>(0).size(), 1U);
}

TEST_F(Join, AStreamCannotBeOpenedWithoutTheJoinedRank) {
  StreamOpen open;
  open.name = "late";
  say(0, open);
  c_.take_actions();
  say(1, Joined{});
  const auto refused = sent<StreamRefused>(0);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_NE(refused[0].status.text().find("rank 1"), std::string_view::npos);
  say(2, open);
  EXPECT_EQ(sent<StreamRefused>(2).size(), 1U);
}

TEST_F(Join, AStepOfAStreamThatAJoinedRankHasClosedIsGivenUp) {
  open_stream();
  say(1, StreamClose{StreamId(1)});
  say(1, Joined{});
  c_.take_actions();
  Waiting step;
  step.entries.push_back({WaitKind::kStreamStep, "opt", 7, 0, {}});
  say(0, step);
  const auto aborted = sent<StreamAborted>(2);
  ASSERT_EQ(aborted.size(), 1U);
  EXPECT_EQ(aborted[0].step, 7U);
  EXPECT_NE(aborted[0].status.text().find("rank 1"), std::string_view::npos) << aborted[0].status.to_string();
}

TEST_F(Join, NamesWorkAgainWhenAllHaveJoined) {
  for (Rank r = 0; r < 3; ++r) {
    say(r, Joined{});
  }
  c_.take_actions();
  for (Rank r = 0; r < 3; ++r) {
    say(r, Announce{"loss", 0, {}});
  }
  EXPECT_EQ(sent<Agreed>(0).size(), 1U);
}

TEST_F(Join, AStepIsNotStuckWhileJoinedRanksStandIn) {
  open_stream();
  say(1, Joined{});
  Waiting step;
  step.blocked = true;
  step.entries.push_back({WaitKind::kStreamStep, "opt", 7, 0, {}});
  Waiting idle;
  idle.blocked = true;
  say(1, idle);
  say(0, step);
  say(2, step);
  c_.take_actions();
  c_.on_tick(at(seconds(2)));
  EXPECT_TRUE(sent<StreamAborted>(0).empty());
}

TEST_F(Join, TheRestIsStuckWhenItWaitsForDifferentSteps) {
  open_stream();
  say(1, Joined{});
  for (const auto& [rank, use] : {std::pair(0, std::uint64_t{7}), std::pair(2, std::uint64_t{8})}) {
    Waiting step;
    step.blocked = true;
    step.entries.push_back({WaitKind::kStreamStep, "opt", use, 0, {}});
    say(rank, step);
  }
  c_.take_actions();
  c_.on_tick(at(seconds(2)));
  const auto aborted = sent<StreamAborted>(0);
  ASSERT_EQ(aborted.size(), 1U);
  EXPECT_EQ(aborted[0].status.code(), Code::kStuck);
}

}  // namespace
}  // namespace sirtaki::control
