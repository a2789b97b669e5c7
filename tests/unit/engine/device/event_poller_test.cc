#include "runtime/engine/device/event_poller.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "tests/unit/device/fake_device.h"
#include "tests/world/sim_loop.h"

namespace sirtaki::engine {
namespace {

using device::testing::FakeDevice;

class EventPollerTest : public ::testing::Test {
 protected:
  EventPollerTest() {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    stream_ = *device_->make_stream(device::Priority::kNormal);
    device_->hold();
    run([&] {
      DeviceStageDeps deps{*loop_,
                           stats_,
                           3,
                           "cuda:1",
                           [] { return Status(); },
                           [this](const Status& cause) {
                             lost_.push_back(cause);
                             watch_->end(cause);
                           }};
      auto stage = DeviceStage::create(std::move(device), std::move(deps), {});
      SRT_CHECK(stage);
      stage_ = std::move(*stage);
      EventPollerOptions options;
      options.deadline = std::chrono::seconds(10);
      watch_ = std::make_unique<EventPoller>(*loop_, *stage_, options);
    });
  }
  ~EventPollerTest() override {
    device_->run();
    run([&] {
      watch_.reset();
      stage_.reset();
    });
  }

  template <class F>
  void run(F task) {
    loop_->run_inline(task);
  }
  // Runs for this time, or until the loop is idle.
  void pass(Duration time) {
    const TimePoint end = clock_.now() + time;
    while (clock_.now() < end && clock_.step()) {
    }
  }
  void ask(int number) {
    run([&] {
      watch_->when(stage_->mark_in_loop(stream_), [this, number](const Status& status) {
        told_.push_back(number);
        statuses_.push_back(status);
      });
    });
  }
  // Queues a copy on the stream.
  void work() { SRT_CHECK(device_->copy(stream_, memory_ + 1, memory_, 1).ok()); }

  world::SimClock clock_{1};
  std::unique_ptr<world::SimLoop> loop_ = clock_.make_loop();
  Stats stats_;
  FakeDevice* device_ = nullptr;
  device::Stream stream_;
  std::byte memory_[2] = {};
  std::unique_ptr<DeviceStage> stage_;
  std::unique_ptr<EventPoller> watch_;
  std::vector<Status> lost_;
  std::vector<int> told_;
  std::vector<Status> statuses_;
};

TEST_F(EventPollerTest, ReportsCompletionInOrder) {
  work();
  ask(1);
  work();
  ask(2);
  pass(std::chrono::seconds(1));
  EXPECT_TRUE(told_.empty());
  while (told_.empty()) {
    ASSERT_TRUE(device_->step(stream_));
    pass(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(told_, std::vector{1});
  device_->run();
  pass(std::chrono::milliseconds(2));
  EXPECT_EQ(told_, (std::vector{1, 2}));
  EXPECT_TRUE(statuses_[0].ok() && statuses_[1].ok());
  EXPECT_FALSE(clock_.step()) << "an idle job sleeps";
}

TEST_F(EventPollerTest, CallbacksAreNeverInline) {
  device_->run();
  ask(1);
  EXPECT_TRUE(told_.empty());
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(told_, std::vector{1});
}

TEST_F(EventPollerTest, AnErrorInAMarkMeansALostDevice) {
  work();
  ask(1);
  run([&] {
    watch_->when(Status(unavailable("an illegal address")), [this](const Status& status) {
      told_.push_back(2);
      statuses_.push_back(status);
    });
  });
  EXPECT_TRUE(told_.empty());
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(lost_.size(), 1U);
  EXPECT_EQ(told_.size(), 2U);
  for (const Status& status : statuses_) {
    EXPECT_EQ(status.text(), "rank 3 has lost its GPU, cuda:1: an illegal address");
  }
  ask(3);
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(told_.size(), 3U);
  EXPECT_FALSE(statuses_[2].ok());
}

TEST_F(EventPollerTest, AnErrorOfAPollMeansALostDevice) {
  work();
  ask(1);
  device_->break_down(unavailable("an illegal address"));
  pass(std::chrono::milliseconds(5));
  EXPECT_EQ(lost_.size(), 1U);
  EXPECT_EQ(told_, std::vector{1});
  EXPECT_FALSE(statuses_[0].ok());
}

TEST_F(EventPollerTest, AFailureAfterTheEndOfTheStageIsReported) {
  work();
  ask(1);
  run([&] { stage_->end({Code::kShutdown, "over"}); });
  device_->break_down(unavailable("an illegal address"));
  pass(std::chrono::milliseconds(5));
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(told_, std::vector{1});
  EXPECT_EQ(statuses_[0].code(), Code::kShutdown);
}

TEST_F(EventPollerTest, WorkThatNeverEndsTimesOut) {
  work();
  ask(1);
  pass(std::chrono::seconds(9));
  EXPECT_TRUE(told_.empty());
  pass(std::chrono::seconds(2));
  EXPECT_EQ(told_, std::vector{1});
  EXPECT_NE(statuses_[0].text().find("has not finished copies and kernels"), std::string_view::npos);
}

TEST_F(EventPollerTest, EndReachesAllWaiters) {
  work();
  ask(1);
  ask(2);
  run([&] { watch_->end({Code::kShutdown, "over"}); });
  EXPECT_EQ(told_, (std::vector{1, 2}));
  EXPECT_EQ(statuses_[1].code(), Code::kShutdown);
}

}  // namespace
}  // namespace sirtaki::engine
