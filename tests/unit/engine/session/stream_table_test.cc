// StreamTable: calls of the program that are interrupted or still waiting when the session ends.
#include "runtime/engine/session/stream_table.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <variant>

#include "runtime/base/telemetry/stats.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/stream_handle.h"

namespace sirtaki::engine {
namespace {

class TaskQueue final : public Loop {
 public:
  TimePoint now() const override { return TimePoint(std::chrono::seconds(1)); }
  bool in_loop() const override { return true; }
  void post(Task task) override { tasks_.push_back(std::move(task)); }
  TimerId after(Duration /*delay*/, Task /*task*/) override { return TimerId(1); }
  void cancel(TimerId /*timer*/) override {}
  void run() {
    while (!tasks_.empty()) {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

 private:
  std::deque<Task> tasks_;
};

class NoNetwork final : public net::Collectives {
 public:
  net::Caps caps() const override { return {}; }
  Rank rank() const override { return 0; }
  int size() const override { return 2; }
  void start(net::CollectiveArgs /*args*/, Done /*done*/) override {}
  void abort(Status /*cause*/) override {}
  void cancel(net::TagGroup /*tags*/, Status /*cause*/) override {}
  void forget(const net::TagGroup& /*tags*/) override {}
};

// A control link that agrees to every stream.
class Agreeing final : public ControlLink {
 public:
  explicit Agreeing(Loop& loop) : loop_(loop) {}
  void tell(Engine& engine) { engine_ = &engine; }
  void send(control::MemberMessage message) override {
    if (const auto* open = std::get_if<control::StreamOpen>(&message)) {
      loop_.post([this, name = open->name] {
        engine_->on_message(control::encode(control::CoordinatorMessage(control::StreamAgreed{name, StreamId(4)})));
      });
    }
  }

 private:
  Loop& loop_;
  Engine* engine_ = nullptr;
};

class StreamTableTest : public testing::Test {
 protected:
  StreamTableTest() { control_.tell(engine_); }

  static StreamSpec spec_of_one(std::int64_t numel) {
    StreamSpec spec;
    spec.name = "optimizer";
    spec.codec = "none";
    spec.tensors.push_back({"weight", {numel}, {}, DType::kF32, {}});
    spec.order.push_back(0);
    return spec;
  }
  StreamId open() {
    const auto stream = table_.open(spec_of_one(8), std::chrono::seconds(30));
    EXPECT_TRUE(stream.ok()) << stream.status().text();
    return stream ? *stream : StreamId(0);
  }
  StreamHandle at(StreamId stream) { return {table_, stream}; }
  Task counting() {
    return [this] { ++called_; };
  }

  TaskQueue loop_;
  NoNetwork net_;
  Agreeing control_{loop_};
  Stats stats_;
  Timeline timeline_{0, "test"};
  Engine engine_{{}, {loop_, net_, control_, stats_, timeline_}, [] { return Callers{}; }};
  // A waiting thread runs the loop of the test.
  Waiter waiter_{[this] {
                   if (!interrupts_) {
                     loop_.run();
                   }
                   return std::exchange(interrupts_, false);
                 },
                 [] {}};
  StreamTable table_{loop_, engine_, waiter_, [](Task task) { return task; }, 0, 2};
  int called_ = 0;
  bool interrupts_ = false;  // interrupts the next wait
};

TEST_F(StreamTableTest, AnInterruptedOpeningGoesOnWithTheNextCall) {
  interrupts_ = true;
  EXPECT_EQ(table_.open(spec_of_one(8), std::chrono::seconds(30)).status().code(), Code::kAborted);
  EXPECT_EQ(table_.open(spec_of_one(9), std::chrono::seconds(30)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(open(), StreamId(4));
  EXPECT_TRUE(at(StreamId(4)).finish().ok());
}

TEST_F(StreamTableTest, AnInterruptedOpeningMayComeToItsEndUnseen) {
  interrupts_ = true;
  EXPECT_EQ(table_.open(spec_of_one(8), std::chrono::seconds(30)).status().code(), Code::kAborted);
  loop_.run();
  EXPECT_EQ(open(), StreamId(4));
  EXPECT_TRUE(at(StreamId(4)).finish().ok());
}

TEST_F(StreamTableTest, TheEndCallsWhoWaitsForAStepOfALoopThatHasStopped) {
  const StreamId stream = open();
  ASSERT_TRUE(at(stream).on_done(counting()).ok());
  EXPECT_EQ(called_, 0) << "the loop never ran";
  table_.end();
  EXPECT_EQ(called_, 1);
  table_.end();
  EXPECT_EQ(called_, 1);
}

TEST_F(StreamTableTest, TheEndCallsWhoWaitsForAStepThatNoRankFinishes) {
  const StreamId stream = open();
  ASSERT_TRUE(at(stream).finish().ok());
  ASSERT_TRUE(at(stream).on_done(counting()).ok());
  loop_.run();
  EXPECT_EQ(called_, 0) << "nothing is over";
  EXPECT_EQ(at(stream).on_done(counting()).code(), Code::kInvalidArgument);
  table_.end();
  EXPECT_EQ(called_, 1);
}

TEST_F(StreamTableTest, NothingIsTakenAfterTheEnd) {
  const StreamId stream = open();
  table_.end();
  EXPECT_EQ(at(stream).on_done(counting()).code(), Code::kShutdown);
  EXPECT_EQ(called_, 0);
}

}  // namespace
}  // namespace sirtaki::engine
