// Members of an elastic job that have to leave it.
#include <gtest/gtest.h>

#include "tests/unit/control/elastic/roster_fixture.h"

namespace sirtaki::control {
namespace {

class RosterLeavesTest : public RosterTest {
 protected:
  // All of these members end the epoch for the last change that is wanted.
  void end_epoch(const std::vector<int>& slots) {
    for (const int slot : slots) {
      regroup(slot, {roster_.epoch(), last_notice<ChangeWanted>(slot)->number, true, true, {}, {}});
    }
  }
  // Slots 0..size-1 form the first epoch of a job, and all give their state to others.
  void start(int size, int min, int max) {
    roster_ = Roster(options(size, min, max));
    form_first(size);
  }
};

TEST_F(RosterLeavesTest, AMemberPartsBehindAStepThatAllAgreeOn) {
  form_first(3);
  leave(1);
  ASSERT_NE(last_notice<ChangeWanted>(2), nullptr);
  EXPECT_EQ(parted(), std::vector<int>());
  end_epoch({1, 2});
  EXPECT_EQ(parted(), std::vector<int>()) << "the others are not sure to go on";
  end_epoch({0});
  EXPECT_EQ(parted(), std::vector{1});
  EXPECT_EQ(slots(), (std::vector{0, 2}));
  EXPECT_EQ(last_notice<EpochEnds>(0), nullptr);
  roster_.on_expected(1, true, now_);
  EXPECT_EQ(roster_.describe().find("expects slot 1"), std::string::npos) << "nobody comes in its place";
}

TEST_F(RosterLeavesTest, AMemberPartsAtALossToo) {
  form_first(3);
  leave(1);
  lose(0);
  again(1);
  again(2);
  EXPECT_EQ(parted(), std::vector<int>());
  tick(std::chrono::milliseconds(20));
  EXPECT_EQ(parted(), std::vector{1});
  EXPECT_EQ(slots(), std::vector{2});
}

TEST_F(RosterLeavesTest, AMemberThatDiesBeforeItHasPartedIsLost) {
  form_first(3);
  leave(1);
  end_epoch({1});
  lose(1);
  EXPECT_NE(last_notice<EpochEnds>(0), nullptr);
  again(0);
  again(2);
  tick(std::chrono::milliseconds(20));
  EXPECT_EQ(parted(), std::vector<int>());
  EXPECT_EQ(slots(), (std::vector{0, 2}));
  EXPECT_NE(roster_.describe().find("expects slot 1"), std::string::npos) << "another process takes its place";
}

TEST_F(RosterLeavesTest, SoManyPartThatEnoughAreLeft) {
  start(4, 2, 4);
  for (const int slot : {3, 2, 1}) {
    leave(slot);
  }
  end_epoch({0, 1, 2, 3});
  EXPECT_EQ(parted(), (std::vector{1, 2})) << "the first ranks";
  EXPECT_EQ(slots(), (std::vector{0, 3}));
  EXPECT_EQ(last_notice<ChangeWanted>(0)->number, 1U) << "the third one cannot leave, so nothing changes";
  EXPECT_EQ(roster_.phase(), Roster::Phase::kRunning);
}

TEST_F(RosterLeavesTest, AMemberThatIsNeededStaysUntilAnotherOneComes) {
  start(2, 2, 3);
  leave(0);
  EXPECT_EQ(last_notice<ChangeWanted>(1), nullptr);
  hello(2);
  regroup(2);
  end_epoch({0, 1});
  EXPECT_EQ(parted(), std::vector{0}) << "in the same change";
  EXPECT_EQ(slots(), (std::vector{1, 2}));
}

TEST_F(RosterLeavesTest, ALossEndsAJobOfTooFewAsElsewhere) {
  start(2, 2, 0);
  leave(0);
  lose(1);
  EXPECT_EQ(parted(), std::vector<int>());
  EXPECT_NE(end().find("too few ranks: 1 of at least 2 (elastic.min)"), std::string::npos) << end();
}

TEST_F(RosterLeavesTest, AMemberStaysUntilAnotherOneHasTheState) {
  start(2, 1, 3);
  leave(0);
  leave(1);
  hello(2);
  regroup(2);
  end_epoch({0, 1});
  EXPECT_EQ(parted(), std::vector<int>()) << "nobody else has the state, and the new one may get it";
  EXPECT_EQ(slots(), (std::vector{0, 1, 2}));
  EXPECT_EQ(last_notice<ChangeWanted>(0)->number, 1U);
  admit(2);
  EXPECT_EQ(last_notice<ChangeWanted>(0)->number, 2U);
  end_epoch({0, 1, 2});
  EXPECT_EQ(parted(), (std::vector{0, 1}));
  EXPECT_EQ(slots(), std::vector{2});
}

TEST_F(RosterLeavesTest, TheJobEndsInOrderIfAllHaveToLeave) {
  form_first(3);
  for (const int slot : {0, 1, 2}) {
    leave(slot);
  }
  end_epoch({0, 1, 2});
  EXPECT_EQ(parted(), (std::vector{0, 1, 2}));
  EXPECT_EQ(roster_.phase(), Roster::Phase::kDone);
  EXPECT_EQ(end(), "shut down: the job has come to its end: all members had to leave it");
}

TEST_F(RosterLeavesTest, AllStayUntilOthersFillTheirSlotsIfTheseAreFilledAgain) {
  RosterOptions choices = options(2, 1, 3);
  choices.refills = true;
  roster_ = Roster(choices);
  form_first(2);
  leave(0);
  leave(1);
  end_epoch({0, 1});
  EXPECT_EQ(slots(), (std::vector{0, 1})) << "nobody has come for their slots";
  EXPECT_EQ(last_notice<ChangeWanted>(0)->number, 1U) << "and nothing changes until somebody does";
  hello(2);
  regroup(2);
  end_epoch({0, 1});
  admit(2);
  end_epoch({0, 1, 2});
  EXPECT_EQ(parted(), (std::vector{0, 1}));
  hello(0, 2);
  regroup(0);
  end_epoch({2});
  EXPECT_EQ(slots(), (std::vector{2, 0}));
}

TEST_F(RosterLeavesTest, NobodyPartsFromMembersThatWaitForMore) {
  start(3, 3, 3);
  leave(0);
  lose(2);
  again(0);
  again(1);
  EXPECT_EQ(roster_.phase(), Roster::Phase::kWaiting);
  hello(2, 2);
  regroup(2);
  tick(std::chrono::milliseconds(20));
  EXPECT_EQ(parted(), std::vector<int>());
  EXPECT_EQ(slots(), (std::vector{0, 1, 2}));
}

}  // namespace
}  // namespace sirtaki::control
