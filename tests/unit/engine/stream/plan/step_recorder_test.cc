#include "runtime/engine/stream/plan/step_recorder.h"

#include <gtest/gtest.h>

#include <vector>

namespace sirtaki::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Steps of two tensors: ready at 0 and 3 ms, finished at 4 ms; tensor 1 is needed 1 ms later and comes after a sleep of
// 2 ms; all is waited for 5 ms after that, for 1 ms.
class Program {
 public:
  void step(Duration between = milliseconds(7)) {
    recorder_.ready(0, now_);
    recorder_.ready(1, now_ + milliseconds(3));
    now_ += milliseconds(4);
    board_.finish(now_);
    recorder_.finished(now_);
    now_ += milliseconds(1);
    board_.need(std::vector<int>{1}, now_);
    board_.slept(milliseconds(2));
    now_ += milliseconds(7);
    recorder_.notified(board_, now_, now_ + milliseconds(1));
    now_ += milliseconds(1) + between;
  }
  StepRecorder& recorder() { return recorder_; }

 private:
  StepRecorder recorder_{2};
  StreamBoard board_{2};
  TimePoint now_ = TimePoint(std::chrono::seconds(5));
};

TEST(StepRecorderTest, RecordsWhenTensorsWereReadyAndNeededWithoutWaiting) {
  Program program;
  for (int i = 0; i < 4; ++i) {
    program.step();
  }
  const scheduler::StepProfile profile = program.recorder().take();
  EXPECT_EQ(profile.ready_us, (std::vector<std::int64_t>{0, 3000}));
  EXPECT_EQ(profile.need_us, (std::vector<std::int64_t>{6000, 1000}));  // 0: when all was waited for
  EXPECT_EQ(profile.backward_us, 4000);
  EXPECT_EQ(profile.exposed_us, 3000);
  EXPECT_EQ(profile.forward_us, 13000);
  EXPECT_EQ(profile.step_us, 20000);
}

TEST(StepRecorderTest, LeavesOutTheFirstStepAndThoseBeforeWhichTheProgramDidOtherThings) {
  Program program;
  program.step(milliseconds(5000));  // the stream's first
  program.step();
  program.step(milliseconds(900));  // an evaluation
  program.step();
  program.step();
  EXPECT_EQ(program.recorder().take().step_us, 20000);
}

// A rank that begins late ends with the others: its steps are as long as theirs.
TEST(StepRecorderTest, AStepLastsFromEndToEnd) {
  StepRecorder recorder(1);
  StreamBoard board(1);
  TimePoint end = TimePoint(std::chrono::seconds(5));
  for (const int late_ms : {0, 6, 1, 9}) {
    const TimePoint begin = end + milliseconds(late_ms);
    recorder.ready(0, begin);
    recorder.finished(begin + milliseconds(1));
    end += milliseconds(20);
    recorder.notified(board, begin + milliseconds(1), end);
  }
  EXPECT_EQ(recorder.take().step_us, 20000);
}

TEST(StepRecorderTest, CountsEachStepOnce) {
  Program program;
  program.step();
  program.step();
  program.step();
  EXPECT_EQ(program.recorder().take().step_us, 20000);
  EXPECT_EQ(program.recorder().take().step_us, 0);
  program.step(milliseconds(17));
  program.step();
  EXPECT_EQ(program.recorder().take().step_us, 25000);
}

TEST(StepRecorderTest, DiscardsAVoidStepAndThePauseAfterIt) {
  Program program;
  program.step();
  program.step();
  program.recorder().interrupted();
  program.step(milliseconds(70));
  program.step();
  EXPECT_EQ(program.recorder().take().step_us, 83000);
  program.step();
  program.recorder().interrupted();
  EXPECT_EQ(program.recorder().take().step_us, 0);
}

TEST(StepRecorderTest, DiscardsStepsOfAnotherPlanOnly) {
  Program program;
  program.step();
  program.step(milliseconds(17));
  program.recorder().forget();
  EXPECT_EQ(program.recorder().take().step_us, 0);
  program.recorder().forget();
  program.step(milliseconds(27));
  program.step();
  EXPECT_EQ(program.recorder().take().step_us, 35000);
}

TEST(StreamBoardTest, TensorsAreReducedInTheStepFinishedLastOnly) {
  StreamBoard board(3);
  const std::vector<int> both{0, 2};
  EXPECT_FALSE(board.reduced(both));
  const std::uint64_t mark = board.finish(TimePoint(microseconds(10)));
  board.publish(0, mark, {});
  EXPECT_FALSE(board.reduced(both));
  board.publish(2, mark, {.used = false});
  EXPECT_TRUE(board.reduced(both));
  EXPECT_TRUE(board.used(0));
  EXPECT_FALSE(board.used(2));
  const std::uint64_t next = board.finish(TimePoint(microseconds(20)));
  EXPECT_FALSE(board.reduced(both));
  board.publish(0, next, {});
  board.publish(2, next, {});
  EXPECT_TRUE(board.reduced(both));
  board.withdraw();
  EXPECT_FALSE(board.reduced(both));
}

TEST(StreamBoardTest, OnlyTheFirstNeedCountsAndSleepIsTakenOut) {
  StreamBoard board(2);
  board.finish(TimePoint(microseconds(100)));
  EXPECT_FALSE(board.needed(0).has_value());
  board.need(std::vector<int>{0}, TimePoint(microseconds(150)));
  board.slept(microseconds(1000));
  board.need(std::vector<int>{0, 1}, TimePoint(microseconds(1180)));
  EXPECT_EQ(board.needed(0), Duration(microseconds(50)));
  EXPECT_EQ(board.needed(1), Duration(microseconds(80)));
  board.finish(TimePoint(microseconds(2000)));
  EXPECT_FALSE(board.needed(1).has_value());
}

}  // namespace
}  // namespace sirtaki::engine
