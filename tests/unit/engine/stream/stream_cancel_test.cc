// Tags that a rank cancels when it or another rank gives a step up, and the time at which it forgets them.
#include "runtime/engine/common/tags.h"
#include "tests/unit/engine/stream/stream_alone.h"

namespace sirtaki::engine {
namespace {

using alone::kStream;
using alone::kTensors;

class StreamCancelTest : public alone::StreamAlone {
 protected:
  // Reports that another rank has given up `step` of the attempt before.
  void told_of(std::uint32_t attempt, std::uint64_t step, bool everywhere) {
    stream_->on_aborted({kStream, attempt, step, everywhere, Status(Code::kAborted, "enough")});
    loop_.run();
  }
  // Returns the number of cancelled tags of the step.
  int cancelled(std::uint32_t attempt, std::uint64_t step) const {
    int count = 0;
    for (const std::uint32_t position : kPositions) {
      for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
        count += net_.cancelled(stream_tag(kStream, attempt, position, step, phase)) ? 1 : 0;
      }
    }
    return count;
  }
  static constexpr std::uint32_t kPositions[] = {0, 1, 2, 77, kExchangePosition, kFlagsPosition};
  static constexpr int kAll = static_cast<int>(std::size(kPositions) * kStreamPhases);
};

TEST_F(StreamCancelTest, ARankThatGivesAStepUpCancelsAllOfItAndOfTheNext) {
  EXPECT_TRUE(step().ok());
  submit(1);
  submit(1);
  EXPECT_EQ(cancelled(0, 1), kAll);
  EXPECT_EQ(cancelled(0, 2), kAll);
  EXPECT_EQ(cancelled(0, 0) + cancelled(0, 3) + cancelled(1, 1), 0);
}

TEST_F(StreamCancelTest, SoDoesOneThatHasNotBegunIt) {
  EXPECT_TRUE(step().ok());
  told_of(1, 1, false);
  EXPECT_EQ(stream_->attempt(), 1U);
  EXPECT_EQ(cancelled(0, 1), kAll);
  EXPECT_EQ(cancelled(0, 2), kAll);
  EXPECT_EQ(cancelled(0, 0) + cancelled(1, 0), 0);
}

TEST_F(StreamCancelTest, OneThatIsAStepAheadCancelsThatToo) {
  EXPECT_TRUE(step().ok());
  EXPECT_TRUE(step().ok());
  submit(kTensors);
  told_of(1, 1, true);
  for (const std::uint64_t step : {1U, 2U, 3U}) {
    EXPECT_EQ(cancelled(0, step), kAll) << step;
  }
  EXPECT_EQ(cancelled(0, 0) + cancelled(1, 0), 0);
}

TEST_F(StreamCancelTest, ACompleteStepForgetsCancelledTags) {
  submit(kTensors);
  told_of(1, 0, true);
  EXPECT_TRUE(net_.anything_cancelled());
  EXPECT_EQ(wait().code(), Code::kAborted);
  EXPECT_TRUE(net_.anything_cancelled());
  EXPECT_TRUE(step().ok());
  EXPECT_FALSE(net_.anything_cancelled());
}

}  // namespace
}  // namespace sirtaki::engine
