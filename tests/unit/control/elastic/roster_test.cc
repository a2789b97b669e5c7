#include <gtest/gtest.h>

#include "tests/unit/control/elastic/roster_fixture.h"

namespace sirtaki::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(RosterTest, TheFirstEpochFormsWhenAllProcessesAreThere) {
  form_first(3);
  EXPECT_EQ(slots(), (std::vector{0, 1, 2}));
  ASSERT_NE(last_notice<EpochFormed>(2), nullptr);
  EXPECT_EQ(last_notice<EpochFormed>(2)->rank, 2);
}

TEST_F(RosterTest, TheFirstEpochFormsWithFewerAfterATimeout) {
  hello(0);
  regroup(0);
  tick(seconds(59));
  EXPECT_EQ(roster_.phase(), Roster::Phase::kWaiting);
  tick(seconds(1));
  EXPECT_EQ(slots(), std::vector{0});
}

TEST_F(RosterTest, TheFirstEpochDoesNotWaitForAProcessThatWillNotCome) {
  hello(0);
  regroup(0);
  roster_.on_expected(1, false, now_);
  roster_.on_expected(2, false, now_);
  take();
  EXPECT_EQ(slots(), std::vector{0});
}

TEST_F(RosterTest, SurvivorsKeepTheirOrderAndNewRanksFollow) {
  form_first(3);
  hello(3);
  regroup(3);
  lose(0);
  again(2, 5, StepState::kComplete);
  again(1);
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{1, 2, 3}));
  const EpochFormed* formed = last_notice<EpochFormed>(3);
  ASSERT_NE(formed, nullptr);
  EXPECT_EQ(formed->streams, (StreamVerdicts{{kSteps, 5}}));
  EXPECT_EQ(formed->seats[0].old_rank, 1);
  EXPECT_EQ(formed->seats[2].old_rank, -1);
  EXPECT_FALSE(formed->seats[2].has_state);
}

TEST_F(RosterTest, LossesThatComeTogetherCostOneEpoch) {
  form_first(3);
  lose(0);
  again(1);
  again(2);
  tick(milliseconds(19));
  EXPECT_EQ(roster_.epoch(), Epoch(1));
  lose(1);
  tick(milliseconds(20));
  EXPECT_EQ(roster_.epoch(), Epoch(2));
  EXPECT_EQ(slots(), std::vector{2});
}

TEST_F(RosterTest, ARankThatIsLostWhileItWaitsForTheOthersIsLeftOutToo) {
  roster_ = Roster(options(4, 2, 0));
  form_first(4);
  lose(1);
  again(2);
  lose(2);
  again(3);
  tick(milliseconds(20));
  EXPECT_EQ(roster_.phase(), Roster::Phase::kForming) << "rank 0 is alive";
  again(0);
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{0, 3}));
  EXPECT_EQ(roster_.epoch(), Epoch(2)) << "one change";
  ASSERT_NE(last_notice<EpochFormed>(3), nullptr);
  EXPECT_EQ(last_notice<EpochFormed>(3)->rank, 1);
  EXPECT_EQ(last_notice<EpochFormed>(3)->seats[1].old_rank, 3);
}

TEST_F(RosterTest, ADeadRankThatHasReportedStillProvesACommit) {
  form_first(3);
  lose(0);
  again(1, 5, StepState::kPassed);
  lose(1);
  again(2, 5, StepState::kComplete);
  tick(milliseconds(20));
  ASSERT_NE(last_notice<EpochFormed>(2), nullptr);
  EXPECT_EQ(last_notice<EpochFormed>(2)->streams, (StreamVerdicts{{kSteps, 6}}));
}

TEST_F(RosterTest, ALossAfterTheFirstRankAtTheEndOfTheProgramEndsTheJobAtOnce) {
  form_first(3);
  roster_.on_departure(connection(0), {true}, now_);
  take();
  EXPECT_EQ(end(), "");
  lose(1);
  ASSERT_NE(last_notice<JobEnds>(2), nullptr);
  EXPECT_NE(end().find("shut down"), std::string::npos) << end();
  again(2, 5, StepState::kComplete);
  EXPECT_EQ(roster_.epoch(), Epoch(1));
}

TEST_F(RosterTest, ARankThatLeavesBeforeTheEndIsLost) {
  form_first(3);
  roster_.on_departure(connection(2), {}, now_);
  take();
  ASSERT_NE(last_notice<EpochEnds>(0), nullptr);
  EXPECT_EQ(last_notice<EpochEnds>(0)->lost.rank, 2);
}

TEST_F(RosterTest, TooFewRanksEndTheJobIfNoProcessMayCome) {
  for (const int max : {0, 3}) {
    roster_ = Roster(options(3, 3, max));
    form_first(3);
    lose(2);
    roster_.on_expected(2, false, now_);
    take();
    EXPECT_EQ(end(), "peer lost: too few ranks: 2 of at least 3 (elastic.min); lost: rank 2 was killed");
  }
}

TEST_F(RosterTest, TooFewRanksWaitForAProcessThatMayCome) {
  roster_ = Roster(options(3, 3, 3));
  form_first(3);
  lose(2);
  again(0);
  again(1);
  EXPECT_EQ(roster_.phase(), Roster::Phase::kWaiting);
  hello(2, 2);
  regroup(2);
  tick(seconds(1));
  EXPECT_EQ(slots(), (std::vector{0, 1, 2}));
  EXPECT_FALSE(last_notice<EpochFormed>(0)->seats[2].has_state);
}

TEST_F(RosterTest, TooFewRanksEndTheJobWhenTheFirstOneArrivesThatAdmitsNobody) {
  roster_ = Roster(options(3, 3, 3));
  form_first(3);
  admit(0, false);
  lose(2);
  EXPECT_EQ(end(), "") << "its word may be under way";
  regroup(0, {Epoch(1), 0, true, false, {}, {}});
  EXPECT_NE(end().find("too few ranks: 2 of at least 3"), std::string::npos) << end();
}

TEST_F(RosterTest, AFreshProcessNeverReplacesTheState) {
  form_first(3);
  hello(3);
  regroup(3, {Epoch(), 0, true, true, {}, {}});
  lose(0);
  lose(1);
  lose(2);
  EXPECT_NE(end().find("all ranks that had the model are lost"), std::string::npos) << end();
  EXPECT_NE(end().find("; fix: set elastic.snapshot_dir"), std::string::npos) << end();
}

TEST_F(RosterTest, AnOlderProcessOfASlotIsRefused) {
  form_first(3);
  lose(2);
  hello(connection(2), 2, 2);
  hello(Connection(9), 2, 1);
  const auto* close = std::get_if<Roster::Close>(&actions_.back());
  ASSERT_NE(close, nullptr);
  EXPECT_EQ(close->connection, Connection(9));
  EXPECT_NE(std::string(close->why.text()).find("another has its place"), std::string::npos)
      << std::string(close->why.text());
}

TEST_F(RosterTest, AProcessThatDialsAgainHasLeftItsConnection) {
  form_first(3);
  hello(Connection(9), 2, 1);
  EXPECT_EQ(roster_.phase(), Roster::Phase::kForming);
  EXPECT_EQ(last_notice<EpochEnds>(0)->lost.rank, 2);
}

TEST_F(RosterTest, ARankThatCannotContinueTheEpochReportsLikeTheOthers) {
  form_first(3);
  regroup(2,
          {Epoch(1), 0, true, true, {Code::kRanksChanged, "cut off", {1, ""}}, {{kSteps, 0, 5, StepState::kComplete}}});
  ASSERT_NE(last_notice<EpochEnds>(0), nullptr);
  const Status& cause = last_notice<EpochEnds>(0)->lost.cause;
  EXPECT_EQ(cause.text(), "rank 2 cannot continue the epoch: cut off");
  EXPECT_EQ(cause.blame().rank, 1);
  again(0, 5, StepState::kPassed);
  again(1, 6, StepState::kWorking);
  EXPECT_EQ(slots(), (std::vector{0, 1, 2}));
  EXPECT_EQ(last_notice<EpochFormed>(2)->streams, (StreamVerdicts{{kSteps, 6}}));
  EXPECT_EQ(last_notice<EpochFormed>(0)->seats[2].old_rank, 2);
  EXPECT_EQ(roster_.broken(), 0);
}

TEST_F(RosterTest, EpochsThatEndAtOnceWithoutALossOrAStepEndTheJob) {
  form_first(3);
  for (int round = 0; end().empty(); ++round) {
    ASSERT_LT(round, 20);
    again(1);
    again(0);
    again(2);
  }
  EXPECT_EQ(roster_.epoch(), Epoch(11));
  EXPECT_NE(end().find("10 epochs in a row have ended without a loss and without a step of an optimizer that counts: "
                       "rank 1 cannot"),
            std::string::npos)
      << end();
}

TEST_F(RosterTest, EpochsMayEndWithoutALossIfStepsCountOrTimePasses) {
  form_first(3);
  for (std::uint64_t round = 1; round < 40; ++round) {
    tick(round < 20 ? seconds(1) : seconds(61));
    for (const int slot : {1, 0, 2}) {
      // Smaller where a stream has begun anew.
      again(slot, round >= 20 ? 20 : round % 2 == 0 ? 5 : round);
    }
  }
  EXPECT_EQ(end(), "");
  EXPECT_EQ(roster_.epoch(), Epoch(40));
}

TEST_F(RosterTest, ARankWithoutResultsOfACommittedStepIsAdmittedAgainAndCounted) {
  form_first(3);
  lose(0);
  again(1, 5, StepState::kPassed);
  again(2, 5, StepState::kWorking);
  tick(milliseconds(20));
  EXPECT_EQ(roster_.broken(), 1);
  ASSERT_NE(last_notice<EpochFormed>(1), nullptr);
  EXPECT_EQ(last_notice<EpochFormed>(1)->seats[1].old_rank, -1);
  EXPECT_FALSE(last_notice<EpochFormed>(1)->seats[1].has_state);
}

TEST_F(RosterTest, ARankWithoutResultsOfACommittedStepIsLostIfNobodyMayJoin) {
  roster_ = Roster(options(3, 1, 0));
  form_first(3);
  lose(0);
  again(1, 5, StepState::kPassed);
  again(2, 5, StepState::kWorking);
  const auto* closed = actions_.empty() ? nullptr : std::get_if<Roster::Close>(&actions_.back());
  ASSERT_NE(closed, nullptr);
  EXPECT_EQ(closed->connection, connection(2));
  EXPECT_EQ(closed->why.text(), "rank 2 lacks results of a step that the others have, and cannot go on with them");
  tick(milliseconds(20));
  EXPECT_EQ(slots(), std::vector{1});
  EXPECT_EQ(roster_.broken(), 1);
}

TEST_F(RosterTest, ASurvivorWhoseProgramDoesNotComeIsGivenUp) {
  form_first(3);
  lose(0);
  again(1);
  tick(std::chrono::minutes(29));
  EXPECT_EQ(roster_.phase(), Roster::Phase::kForming);
  tick(std::chrono::minutes(1));
  tick(seconds(1));
  EXPECT_EQ(slots(), std::vector{1});
}

TEST_F(RosterTest, NoTickIsDueWhileAProgramIsSlow) {
  form_first(3);
  lose(0);
  again(1);
  tick(seconds(1));
  ASSERT_TRUE(roster_.next_tick().has_value());
  EXPECT_GT(*roster_.next_tick(), now_ + std::chrono::minutes(1));
  again(2);
  EXPECT_EQ(slots(), (std::vector{1, 2}));
}

TEST_F(RosterTest, ACandidateComesWhenAllMembersHaveAgreedToEndTheEpoch) {
  form_first(3);
  hello(3);
  EXPECT_EQ(last_notice<ChangeWanted>(0), nullptr);  // its program does not wait yet
  regroup(3);
  ASSERT_NE(last_notice<ChangeWanted>(2), nullptr);
  EXPECT_EQ(last_notice<ChangeWanted>(2)->number, 1U);
  for (const int slot : {2, 0, 1}) {
    EXPECT_EQ(roster_.epoch(), Epoch(1));
    regroup(slot, {Epoch(1), 1, true, true, {}, {}});
  }
  EXPECT_EQ(slots(), (std::vector{0, 1, 2, 3}));
  EXPECT_TRUE(last_notice<EpochFormed>(3)->grows);
  EXPECT_EQ(last_notice<EpochFormed>(3)->change, 1U);
  EXPECT_EQ(last_notice<EpochEnds>(1), nullptr);
}

TEST_F(RosterTest, ACandidateOfAFullJobComesWhenAMemberGoes) {
  roster_ = Roster(options(3, 3, 3));
  form_first(3);
  hello(3);
  regroup(3);
  EXPECT_EQ(last_notice<ChangeWanted>(0), nullptr) << "the job is full";
  lose(1);
  again(0);
  again(2);
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{0, 2, 3})) << "in the epoch that follows the loss, though three are the fewest";
  admit(3);
  hello(Connection(20), 1, 2);
  roster_.on_regroup(Connection(20), {}, now_);
  take();
  EXPECT_EQ(last_notice<ChangeWanted>(0), nullptr);
  leave(0);
  for (const int slot : {0, 2, 3}) {
    ASSERT_NE(last_notice<ChangeWanted>(slot), nullptr) << "enough ranks are left";
    regroup(slot, {roster_.epoch(), 1, true, true, {}, {}});
  }
  EXPECT_EQ(parted(), std::vector{0});
  EXPECT_EQ(slots(), (std::vector{2, 3, 19}));
}

TEST_F(RosterTest, NobodyComesIntoAProgramThatDoesNotGiveItsState) {
  form_first(3);
  admit(1, false);
  hello(3);
  regroup(3);
  EXPECT_EQ(last_notice<ChangeWanted>(0), nullptr);
  lose(0);
  again(2);
  regroup(1, {Epoch(1), 0, true, false, {}, {}});
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{1, 2}));
  admit(1);
  EXPECT_NE(last_notice<ChangeWanted>(2), nullptr);
}

TEST_F(RosterTest, ANewRankHasNoStateBeforeItSaysSo) {
  for (const bool says_so : {false, true}) {
    roster_ = Roster(options(3, 1, 4));
    form_first(3);
    join({3});
    if (says_so) {
      admit(3);
    }
    for (const int slot : {0, 1, 2}) {
      lose(slot);
    }
    regroup(3, {Epoch(2), 0, says_so, says_so, {}, {}});
    tick(milliseconds(20));
    EXPECT_EQ(end().find("all ranks that had the model are lost") == std::string::npos, says_so) << end();
  }
}

TEST_F(RosterTest, ANewRankThatDoesNotGetTheStateIsGivenUp) {
  form_first(3);
  join({3});
  EXPECT_EQ(slots(), (std::vector{0, 1, 2, 3}));
  tick(std::chrono::minutes(6));
  lose(0);
  again(1);
  again(2);
  regroup(3, {Epoch(2), 0, false, false, {}, {}});
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{1, 2, 3}));
  tick(std::chrono::minutes(6));
  EXPECT_EQ(roster_.phase(), Roster::Phase::kRunning) << "a program that asks for the next epoch is alive";
  ASSERT_TRUE(roster_.next_tick().has_value());
  tick(std::chrono::minutes(4));
  ASSERT_NE(last_notice<EpochEnds>(1), nullptr);
  EXPECT_EQ(last_notice<EpochEnds>(1)->lost.rank, 2);
  EXPECT_EQ(last_notice<EpochEnds>(1)->lost.cause.text(),
            "rank 2 has not got the state of the job within 600 s and is given up");
}

TEST_F(RosterTest, AllNewRanksThatDoNotGetTheStateAreGivenUp) {
  roster_ = Roster(options(3, 1, 5));
  form_first(3);
  join({3, 4});
  ASSERT_EQ(slots(), (std::vector{0, 1, 2, 3, 4}));
  tick(std::chrono::minutes(10));
  for (const int slot : {0, 1, 2}) {
    again(slot);
  }
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{0, 1, 2}));
}

TEST_F(RosterTest, ANewRankThatDoesNotGetTheStateIsGivenUpAfterAnotherLossToo) {
  form_first(3);
  join({3});
  tick(std::chrono::minutes(6));
  lose(0);
  again(1);
  again(2);
  tick(milliseconds(20));
  ASSERT_TRUE(roster_.next_tick().has_value());
  EXPECT_LE(*roster_.next_tick(), now_ + std::chrono::minutes(4));
  tick(std::chrono::minutes(4));
  tick(milliseconds(20));
  EXPECT_EQ(slots(), (std::vector{1, 2}));
}

TEST_F(RosterTest, ANewRankThatHasTheStateHasNoDeadline) {
  form_first(3);
  EXPECT_EQ(roster_.next_tick(), std::nullopt) << "nor has one of the first epoch";
  join({3});
  admit(3);
  EXPECT_EQ(roster_.next_tick(), std::nullopt);
  tick(std::chrono::hours(1));
  EXPECT_EQ(roster_.phase(), Roster::Phase::kRunning);
}

TEST_F(RosterTest, NobodyIsStartedAgainBeforeTheFirstEpoch) {
  roster_ = Roster(options(3, 3, 3));
  hello(0);
  regroup(0);
  hello(1);
  EXPECT_EQ(roster_.phase(), Roster::Phase::kWaiting);
  lose(1);
  EXPECT_EQ(roster_.phase(), Roster::Phase::kDone);
}

TEST_F(RosterTest, ASlotThatWasGivenUpStaysEmptyWhenItsProcessEnds) {
  for (const bool given_up : {false, true}) {
    roster_ = Roster(options(3, 3, 3));
    form_first(3);
    if (given_up) {
      roster_.on_given_up(1, now_);
    }
    lose(1);
    again(0);
    again(2);
    tick(milliseconds(20));
    EXPECT_EQ(roster_.phase() == Roster::Phase::kDone, given_up);
  }
}

TEST_F(RosterTest, ACandidateLearnsThatTheJobHasEnded) {
  form_first(3);
  hello(3);
  roster_.on_departure(connection(0), {true}, now_);
  take();
  const auto* close = std::get_if<Roster::Close>(&actions_.back());
  ASSERT_NE(close, nullptr);
  EXPECT_EQ(close->why.code(), Code::kShutdown);
}

}  // namespace
}  // namespace sirtaki::control
