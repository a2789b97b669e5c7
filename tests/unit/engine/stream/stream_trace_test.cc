#include "runtime/engine/stream/stream_trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/plan/plans.h"

namespace sirtaki::engine {
namespace {

using scheduler::make_plan;

class HandClock : public Loop {
 public:
  TimePoint now() const override {
    return TimePoint(std::chrono::milliseconds(milliseconds)) + std::chrono::nanoseconds(ticking ? ++readings : 0);
  }
  bool in_loop() const override { return true; }
  void post(Task /*task*/) override {}
  TimerId after(Duration /*delay*/, Task /*task*/) override { return TimerId(1); }
  void cancel(TimerId /*timer*/) override {}

  std::int64_t milliseconds = 1000;
  bool ticking = false;  // time goes on between two readings
  mutable int readings = 0;
};

struct SeenSpan {
  Stage stage;
  std::string name;
  std::int64_t begin_ms;
  std::int64_t end_ms;

  friend bool operator==(const SeenSpan&, const SeenSpan&) = default;
};

class StreamTraceTest : public testing::Test {
 protected:
  std::int64_t ms(TimePoint time) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  }

  std::vector<SeenSpan> spans() {
    const auto chunk = decode_timeline_chunk(timeline_.drain());
    if (!chunk) {
      return {};
    }
    for (const auto& name : chunk->names) {
      names_[name.id] = name.text;
    }
    std::vector<SeenSpan> seen;
    for (const auto& track : chunk->tracks) {
      for (const Span& span : track.spans) {
        seen.push_back({span.stage, names_[span.name], ms(span.begin), ms(span.end)});
      }
    }
    return seen;
  }

  // One partition from its turn to its result.
  void travel(int position, std::int64_t until_ms) {
    stream_.launched(position);
    stream_.packed(position, 40);
    clock_.milliseconds = until_ms;
    stream_.received(position, 40);
    stream_.unpacked(position, 40);
  }

  HandClock clock_;
  Timeline timeline_{0, "test"};
  Trace trace_{clock_, timeline_};
  StreamTrace stream_{trace_, "s"};
  std::map<std::uint32_t, std::string> names_;
};

TEST_F(StreamTraceTest, RecordsTheQueueAndTheStagesOfAPartition) {
  timeline_.set_enabled(true);
  stream_.begin_step(make_plan({{"a", 1000}, {"b", 1000}}));
  stream_.ready(1);
  clock_.milliseconds = 1010;
  stream_.ready(0);
  travel(0, 1030);
  travel(1, 1060);
  EXPECT_EQ(spans(), (std::vector<SeenSpan>{
                         {Stage::kPack, "s: a", 1010, 1010},
                         {Stage::kNetwork, "s: a", 1010, 1030},
                         {Stage::kUnpack, "s: a", 1030, 1030},
                         {Stage::kQueue, "s: b behind s: a", 1000, 1010},
                         {Stage::kQueue, "s: b behind what is in flight", 1010, 1030},
                         {Stage::kPack, "s: b", 1030, 1030},
                         {Stage::kNetwork, "s: b", 1030, 1060},
                         {Stage::kUnpack, "s: b", 1060, 1060},
                     }));
}

TEST_F(StreamTraceTest, NamesBucketsAndPiecesByTheirFirstTensor) {
  timeline_.set_enabled(true);
  stream_.begin_step(make_plan({{"a", 10}, {"b", 10}, {"c", 2100}}));
  travel(0, 1001);
  travel(2, 1002);
  const std::vector<SeenSpan> seen = spans();
  ASSERT_EQ(seen.size(), 6U);
  EXPECT_EQ(seen.front().name, "s: a and 1 more");
  EXPECT_TRUE(seen.back().name.starts_with("s: c ["));
}

TEST_F(StreamTraceTest, RecordsNeedsAndWaitsOfTheProgram) {
  timeline_.set_enabled(true);
  StreamBoard board(2);
  stream_.begin_step(make_plan({{"a", 1000}, {"b", 1000}}));
  stream_.ready(0);
  stream_.ready(1);
  board.finish(clock_.now());
  travel(0, 1020);
  clock_.milliseconds = 1025;
  board.need(std::vector<int>{0, 1}, clock_.now());
  travel(1, 1050);
  spans();
  stream_.end_step(TimePoint(std::chrono::milliseconds(1045)), board);
  EXPECT_EQ(spans(), (std::vector<SeenSpan>{
                         {Stage::kWait, "s", 1045, 1050},
                         {Stage::kNeed, "s: a", 1025, 1025},
                         {Stage::kNeed, "s: b", 1025, 1050},
                     }));
}

TEST_F(StreamTraceTest, AMomentDoesNotEndBeforeItBegins) {
  clock_.ticking = true;
  timeline_.set_enabled(true);
  trace_.event("a decision");
  EXPECT_EQ(spans(), (std::vector<SeenSpan>{{Stage::kControl, "a decision", 1000, 1000}}));
}

TEST_F(StreamTraceTest, LeavesOutSpansBegunBeforeTracing) {
  StreamBoard board(1);
  stream_.begin_step(make_plan({{"a", 1000}}));
  stream_.ready(0);
  stream_.launched(0);
  timeline_.set_enabled(true);
  stream_.packed(0, 40);
  clock_.milliseconds = 1020;
  stream_.received(0, 40);
  stream_.unpacked(0, 40);
  EXPECT_EQ(spans(),
            (std::vector<SeenSpan>{{Stage::kNetwork, "s: a", 1000, 1020}, {Stage::kUnpack, "s: a", 1020, 1020}}));
}

}  // namespace
}  // namespace sirtaki::engine
