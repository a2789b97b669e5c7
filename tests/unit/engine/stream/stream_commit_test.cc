// The commit gate at the end of a step, and the position that a rank reports when its session has failed.
#include <gtest/gtest.h>

#include <optional>

#include "runtime/engine/common/tags.h"
#include "tests/unit/engine/stream/stream_alone.h"

namespace sirtaki::engine {
namespace {

using alone::kStream;
using alone::kTensors;
using control::StepState;
using control::StreamReport;

class StreamCommitTest : public alone::StreamAlone {
 protected:
  StreamCommitTest() : StreamAlone({.layout = alone::kLayout, .replan = false, .commit_gate = true}) {}

  void finish() {
    submit(kTensors);
    stream_->finish(stream_->board()->finish(loop_.now()), loop_.now());
  }
  // Ends all operations but the gate of this step.
  void reduce() {
    while (net_.running() > 0 && !net_.runs(gate())) {
      net_.succeed();
      loop_.run();
    }
  }
  OpTag gate() const { return stream_tag(kStream, stream_->attempt(), kGatePosition, stream_->step()); }
  StreamReport at(std::uint64_t step, StepState state) const { return {kStream, stream_->attempt(), step, state}; }
  void lose() { stream_->fail({Code::kRanksChanged, "a rank was lost"}); }
};

TEST_F(StreamCommitTest, AStepEndsWhenAllHaveEnteredTheGate) {
  std::optional<Status> ended;
  finish();
  stream_->wait([&](const Status& status) { ended = status; });
  reduce();
  EXPECT_TRUE(net_.runs(gate()));
  EXPECT_FALSE(ended.has_value());
  net_.succeed();
  loop_.run();
  EXPECT_EQ(ended.value_or(Status(Code::kTimeout, "")).to_string(), "ok");
  EXPECT_EQ(stream_->report(), at(1, StepState::kIdle));
  EXPECT_EQ(stats_.histogram("gate").count(), 1U);
  EXPECT_TRUE(step().ok());
}

TEST_F(StreamCommitTest, AFailureLeavesTheReportAsItWas) {
  EXPECT_TRUE(step().ok());
  EXPECT_EQ(stream_->report(), at(1, StepState::kIdle));
  submit(1);
  EXPECT_EQ(stream_->report(), at(1, StepState::kWorking));
  lose();
  EXPECT_EQ(wait().code(), Code::kRanksChanged);
  EXPECT_EQ(stream_->report(), at(1, StepState::kWorking));
}

TEST_F(StreamCommitTest, ARankInTheGateIsComplete) {
  finish();
  reduce();
  EXPECT_EQ(stream_->report(), at(0, StepState::kComplete));
  lose();
  EXPECT_EQ(wait().code(), Code::kRanksChanged);
  EXPECT_EQ(stream_->report(), at(0, StepState::kComplete));
}

TEST_F(StreamCommitTest, ARankThatHasPassedSaysSoBeforeItsProgramKnows) {
  finish();
  reduce();
  net_.succeed();
  loop_.run();
  EXPECT_EQ(stream_->report(), at(0, StepState::kPassed));
  lose();
  EXPECT_EQ(wait().code(), Code::kRanksChanged);
  EXPECT_EQ(stream_->report(), at(0, StepState::kPassed));
}

TEST_F(StreamCommitTest, APeerLostInTheGateDoesNotVoidTheStep) {
  finish();
  reduce();
  net_.fail(gate(), {Code::kPeerLost, "the connection has ended"});
  loop_.run();
  EXPECT_EQ(stream_->report(), at(0, StepState::kComplete));
  EXPECT_TRUE(stream_->in_flight().has_value());
}

// The rank that has left may have done so before its entry into the gate; nobody else ends the step then.
TEST_F(StreamCommitTest, AStepWhoseGateFailsBecauseAPeerHasLeftIsGivenUp) {
  for (const bool left_first : {true, false}) {
    const Status left(Code::kPeerLost, "rank 1 has shut down", {1, ""});
    finish();
    reduce();
    if (left_first) {
      stream_->note_left(left);
    }
    net_.fail(gate(), {Code::kPeerLost, "the connection has ended"});
    loop_.run();
    stream_->note_left(left);
    EXPECT_FALSE(stream_->in_flight().has_value()) << stream_->describe();
    stream_->on_aborted({kStream, stream_->attempt() + 1, 0, true, left});
    EXPECT_EQ(wait().to_string(), left.to_string());
  }
}

TEST_F(StreamCommitTest, AStepThatIsGivenUpInTheGateCountsAndTheNextOneIsGivenUp) {
  bool released = false;
  finish();
  reduce();
  stream_->abort({Code::kAborted, "enough"}, [&] { released = true; });
  EXPECT_EQ(stream_->report(), at(0, StepState::kComplete));
  EXPECT_FALSE(released);
  net_.succeed();
  loop_.run();
  EXPECT_TRUE(released);
  EXPECT_EQ(stream_->report().step, 1U);
  ASSERT_TRUE(control_.aborted.has_value());
  EXPECT_EQ(control_.aborted->step, 1U);
  stream_->on_aborted({kStream, 1, 1, true, Status(Code::kAborted, "enough")});
  loop_.run();
  EXPECT_EQ(stream_->report(), at(1, StepState::kIdle));
  EXPECT_TRUE(step().ok());
}

TEST_F(StreamCommitTest, ALossInTheGateEndsTheWaitOfARankThatHasGivenUp) {
  bool released = false;
  finish();
  reduce();
  stream_->abort({Code::kAborted, "enough"}, [&] { released = true; });
  lose();
  loop_.run();
  EXPECT_TRUE(released);
  EXPECT_EQ(stream_->report(), at(0, StepState::kComplete));
}

TEST_F(StreamCommitTest, ARankThatGivesUpInTheGateLearnsThatAnotherOneHasDoneSoBefore) {
  bool released = false;
  finish();
  reduce();
  stream_->abort({Code::kAborted, "enough"}, [&] { released = true; });
  stream_->on_aborted({kStream, 1, 0, true, Status(Code::kAborted, "earlier")});
  loop_.run();
  EXPECT_TRUE(released);
  EXPECT_FALSE(control_.aborted.has_value());
  EXPECT_EQ(stream_->report(), at(0, StepState::kIdle));
  EXPECT_TRUE(step().ok());
}

// A wait whose timeout has passed stays, and belongs to the next step, as it does without a gate.
TEST_F(StreamCommitTest, AWaitForAStepThatIsGivenUpInTheGateBelongsToTheNext) {
  std::optional<Status> ended;
  bool released = false;
  finish();
  stream_->wait([&](const Status& status) { ended = status; });
  reduce();
  stream_->abort({Code::kAborted, "enough"}, [&] { released = true; });
  EXPECT_EQ(stream_->report(), at(0, StepState::kComplete));
  net_.succeed();
  loop_.run();
  EXPECT_TRUE(released);
  EXPECT_FALSE(ended.has_value());
  EXPECT_EQ(stream_->report().step, 1U);
  stream_->on_aborted({kStream, 1, 1, true, Status(Code::kAborted, "enough")});
  finish();
  reduce();
  net_.succeed();
  loop_.run();
  EXPECT_EQ(ended.value_or(Status(Code::kTimeout, "")).to_string(), "ok");
  EXPECT_EQ(stream_->report(), at(2, StepState::kIdle));
}

TEST_F(StreamCommitTest, TwoThreadsThatGiveUpInTheGateGiveUpOneStep) {
  int released = 0;
  finish();
  reduce();
  stream_->abort({Code::kAborted, "first"}, [&] { ++released; });
  stream_->abort({Code::kAborted, "second"}, [&] { ++released; });
  std::optional<Status> ended;
  stream_->wait([&](const Status& status) { ended = status; });
  net_.succeed();
  loop_.run();
  EXPECT_EQ(released, 2);
  ASSERT_TRUE(control_.aborted.has_value());
  EXPECT_EQ(control_.aborted->status.text(), "first");
  stream_->on_aborted({kStream, 1, 1, true, Status(Code::kAborted, "first")});
  loop_.run();
  EXPECT_FALSE(ended.has_value());
  lose();
  EXPECT_EQ(ended.value_or(Status()).code(), Code::kRanksChanged);
}

TEST_F(StreamCommitTest, PositionsCountStepsOverAttempts) {
  EXPECT_TRUE(step().ok());
  submit(1);
  stream_->abort({Code::kAborted, "enough"}, [] {});
  loop_.run();
  EXPECT_EQ(stream_->report().step, 1U);
  stream_->on_aborted({kStream, 1, 1, true, Status(Code::kAborted, "enough")});
  loop_.run();
  EXPECT_EQ(stream_->report(), at(1, StepState::kIdle));
}

}  // namespace
}  // namespace sirtaki::engine
