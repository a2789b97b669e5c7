#include "runtime/engine/device/device_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/base/check.h"
#include "tests/unit/device/fake_device.h"
#include "tests/world/sim_loop.h"

namespace sirtaki::engine {
namespace {

using device::testing::FakeDevice;

class DeviceStageTest : public ::testing::Test {
 protected:
  DeviceStageTest() {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    program_ = *device_->make_stream(device::Priority::kNormal);
    device_->hold();
    run([&] {
      DeviceStageDeps deps{*loop_,
                           stats_,
                           3,
                           "cuda:1",
                           [this] { return over_; },
                           [this](const Status& cause) { lost_.push_back(cause); }};
      DeviceStageOptions options;
      options.deadline = std::chrono::seconds(10);
      auto stage = DeviceStage::create(std::move(device), std::move(deps), options);
      SRT_CHECK(stage);
      stage_ = std::move(*stage);
    });
  }
  ~DeviceStageTest() override {
    run([&] { stage_.reset(); });
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
  // Fetches `from`; returns the place of its result.
  std::shared_ptr<std::optional<Status>> fetch(std::vector<float>& from, device::PinnedBlock& block) {
    auto end = std::make_shared<std::optional<Status>>();
    run([&] {
      auto taken = stage_->take(from.size() * sizeof(float));
      if (taken) {
        block = std::move(*taken);
      }
      stage_->fetch(block.bytes(), reinterpret_cast<const std::byte*>(from.data()), stage_->mark(program_),
                    [end](Status status) { *end = std::move(status); });
    });
    EXPECT_FALSE(end->has_value()) << "never from inside";
    return end;
  }

  world::SimClock clock_{1};
  std::unique_ptr<world::SimLoop> loop_ = clock_.make_loop();
  Stats stats_;
  Status over_;
  std::vector<Status> lost_;
  FakeDevice* device_ = nullptr;
  device::Stream program_;
  std::unique_ptr<DeviceStage> stage_;
};

TEST_F(DeviceStageTest, AFetchWaitsForQueuedWork) {
  std::vector<float> tensor = {1, 2, 3};
  FakeDevice::queue(program_.native, [&] { tensor[1] = 20; });
  device::PinnedBlock block;
  const auto end = fetch(tensor, block);
  FakeDevice::queue(program_.native, [&] { tensor[1] = -1; });
  EXPECT_TRUE(stage_->fetching());
  pass(std::chrono::milliseconds(5));
  EXPECT_FALSE(end->has_value());
  ASSERT_TRUE(device_->step(program_));
  ASSERT_TRUE(device_->step(program_)) << "the event";
  pass(std::chrono::milliseconds(5));
  EXPECT_FALSE(end->has_value()) << "not copied yet";
  // Runs streams in another order than the program: the copy is done first.
  device_->be_slow();
  tensor[2] = 30;
  pass(std::chrono::milliseconds(5));
  ASSERT_TRUE(end->has_value());
  EXPECT_TRUE((**end).ok());
  EXPECT_FALSE(stage_->fetching());
  std::vector<float> here(3);
  std::memcpy(here.data(), block.bytes().data(), 12);
  EXPECT_EQ(here[0], 1);
  EXPECT_EQ(here[2], 30);
  EXPECT_FALSE(clock_.step()) << "an idle stage does not poll";
}

TEST_F(DeviceStageTest, LaterWorkSeesAReturnedTensor) {
  std::vector<float> tensor = {1, 2};
  float seen = 0;
  run([&] {
    auto block = stage_->take(8);
    ASSERT_TRUE(block);
    const float result[] = {5, 6};
    std::memcpy(block->bytes().data(), result, 8);
    EXPECT_TRUE(stage_->order_before(program_).ok()) << "there is nothing to wait for";
    EXPECT_TRUE(stage_->put_back(std::move(*block), reinterpret_cast<std::byte*>(tensor.data())).ok());
    EXPECT_TRUE(stage_->order_before(program_).ok());
  });
  FakeDevice::queue(program_.native, [&] { seen = tensor[1]; });
  EXPECT_FALSE(device_->step(program_)) << "it waits for the copy";
  EXPECT_FALSE(stage_->fetching());
  device_->catch_up();
  EXPECT_EQ(seen, 6);
  pass(std::chrono::milliseconds(5));
  run([&] { EXPECT_TRUE(stage_->take(8)); });
  EXPECT_EQ(stats_.counter("device.returned_bytes").value(), 8U);
  EXPECT_EQ(stats_.gauge("device.pinned_bytes").value(), 4096) << "the same block again";
}

TEST_F(DeviceStageTest, ManyCopiesArriveInTheirOrder) {
  constexpr int kMany = 300;
  std::vector<std::vector<float>> tensors;
  std::vector<device::PinnedBlock> blocks(kMany);
  std::vector<int> order;
  for (int i = 0; i < kMany; ++i) {
    tensors.push_back({static_cast<float>(i)});
  }
  for (int i = 0; i < kMany; ++i) {
    run([&, i] {
      const auto place = static_cast<std::size_t>(i);
      blocks[place] = std::move(*stage_->take(4));
      stage_->fetch(blocks[place].bytes(), reinterpret_cast<const std::byte*>(tensors[place].data()),
                    stage_->mark(program_), [&order, i](const Status& status) {
                      EXPECT_TRUE(status.ok());
                      order.push_back(i);
                    });
    });
  }
  device_->be_slow();
  pass(std::chrono::seconds(5));
  ASSERT_EQ(order.size(), std::size_t{kMany});
  EXPECT_TRUE(std::ranges::is_sorted(order));
  for (int i = 0; i < kMany; ++i) {
    float here = -1;
    std::memcpy(&here, blocks[static_cast<std::size_t>(i)].bytes().data(), 4);
    EXPECT_EQ(here, static_cast<float>(i));
  }
}

TEST_F(DeviceStageTest, EachOfManyTensorsIsHandedOverWhenTheGpuHasWrittenIt) {
  constexpr int kMany = 300;
  constexpr Duration kKernel = std::chrono::microseconds(200);
  device_->keep_time([this] { return clock_.now(); });
  for (const bool in_place : {true, false}) {
    std::vector<float> tensor = {1};
    std::vector<device::PinnedBlock> blocks(kMany);
    run([&] { std::ranges::generate(blocks, [&] { return std::move(*stage_->take(in_place ? 0 : 4)); }); });
    std::vector<Duration> lateness;
    const TimePoint begin = clock_.now();
    for (int i = 0; i < kMany; ++i) {
      FakeDevice::occupy(program_, kKernel);
      run([&, i] {
        stage_->fetch(blocks[static_cast<std::size_t>(i)].bytes(), reinterpret_cast<const std::byte*>(tensor.data()),
                      stage_->mark(program_), [&, i](const Status& status) {
                        EXPECT_TRUE(status.ok());
                        lateness.push_back(clock_.now() - (begin + (i + 1) * kKernel));
                      });
      });
    }
    pass(std::chrono::seconds(1));
    ASSERT_EQ(lateness.size(), std::size_t{kMany}) << in_place;
    EXPECT_GE(std::ranges::min(lateness), Duration(0)) << in_place;
    EXPECT_LE(std::ranges::max(lateness), std::chrono::milliseconds(1)) << in_place;
  }
}

TEST_F(DeviceStageTest, ATensorInPlaceWaitsForNoOtherStream) {
  const device::Stream other = *device_->make_stream(device::Priority::kNormal);
  device_->keep_time([this] { return clock_.now(); }, std::chrono::milliseconds(50));
  std::vector<float> tensor = {1};
  device::PinnedBlock block;
  const auto copied = fetch(tensor, block);
  FakeDevice::occupy(other, std::chrono::milliseconds(50));
  std::vector<int> order;
  run([&] {
    stage_->fetch({}, nullptr, stage_->mark(other), [&](const Status& /*status*/) { order.push_back(2); });
    stage_->fetch({}, nullptr, stage_->mark(program_), [&](const Status& /*status*/) { order.push_back(1); });
  });
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(order, std::vector{1});
  EXPECT_FALSE(copied->has_value());
  pass(std::chrono::milliseconds(60));
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_TRUE(copied->has_value());
}

TEST_F(DeviceStageTest, LaterStepsAllocateNothing) {
  device_->keep_time([this] { return clock_.now(); }, std::chrono::microseconds(50));
  constexpr std::size_t kTensors = 20;
  std::vector<std::vector<float>> tensors(kTensors, {1});
  int after_the_first_step = 0;
  for (int step = 0; step < 3; ++step) {
    std::vector<device::PinnedBlock> blocks(kTensors);
    for (std::size_t i = 0; i < kTensors; ++i) {
      FakeDevice::occupy(program_, std::chrono::microseconds(20));
      run([&, i] {
        blocks[i] = std::move(*stage_->take(4));
        stage_->fetch(
            blocks[i].bytes(), reinterpret_cast<const std::byte*>(tensors[i].data()), stage_->mark(program_),
            [&, i](const Status& /*status*/) {
              EXPECT_TRUE(stage_->put_back(std::move(blocks[i]), reinterpret_cast<std::byte*>(tensors[i].data())).ok());
            });
      });
    }
    pass(std::chrono::milliseconds(50));
    after_the_first_step = step == 0 ? device_->memory_calls() : after_the_first_step;
  }
  EXPECT_EQ(device_->memory_calls(), after_the_first_step);
}

TEST_F(DeviceStageTest, ADeviceThatFailsEndsEverythingOnce) {
  std::vector<float> tensor = {1};
  device::PinnedBlock one;
  device::PinnedBlock two;
  const auto first = fetch(tensor, one);
  device_->break_down(unavailable("an illegal address"));
  pass(std::chrono::milliseconds(5));
  ASSERT_TRUE(first->has_value());
  EXPECT_EQ((*first)->text(), "rank 3 has lost its GPU, cuda:1: an illegal address");
  const auto second = fetch(tensor, two);
  pass(std::chrono::milliseconds(5));
  ASSERT_TRUE(second->has_value());
  EXPECT_EQ((*second)->text(), "rank 3 has lost its GPU, cuda:1: an illegal address");
  run([&] {
    EXPECT_FALSE(stage_->take(4));
    EXPECT_FALSE(stage_->put_back({}, nullptr).ok());
    EXPECT_FALSE(stage_->order_before(program_).ok());
  });
  ASSERT_EQ(lost_.size(), 1U);
  EXPECT_EQ(lost_[0].text(), "rank 3 has lost its GPU, cuda:1: an illegal address");
}

TEST_F(DeviceStageTest, ARejectedFetchEndsLater) {
  std::vector<float> tensor = {1};
  device::PinnedBlock block;
  device_->refuse_next(unavailable("no such stream"));
  const auto end = fetch(tensor, block);
  EXPECT_TRUE(lost_.empty());
  pass(std::chrono::milliseconds(1));
  ASSERT_TRUE(end->has_value());
  EXPECT_EQ((*end)->text(), "rank 3 has lost its GPU, cuda:1: no such stream");
  EXPECT_EQ(lost_.size(), 1U);
}

TEST_F(DeviceStageTest, AFetchTimesOut) {
  std::vector<float> tensor = {1};
  device::PinnedBlock block;
  const auto hung = fetch(tensor, block);
  pass(std::chrono::seconds(11));
  ASSERT_TRUE(hung->has_value());
  EXPECT_EQ((*hung)->code(), Code::kTimeout);
  EXPECT_EQ((*hung)->blame().rank, 3);
  EXPECT_EQ(lost_.size(), 1U);
}

TEST_F(DeviceStageTest, AFetchAddedByACallbackIsPending) {
  constexpr int kMany = 70;
  std::vector<float> tensor = {1};
  const auto* const from = reinterpret_cast<const std::byte*>(tensor.data());
  std::vector<device::PinnedBlock> blocks(kMany + 1);
  std::optional<Status> late;
  int ended = 0;
  run([&] {
    for (device::PinnedBlock& block : blocks) {
      block = std::move(*stage_->take(4));
    }
    for (int i = 0; i < kMany; ++i) {
      stage_->fetch(blocks[static_cast<std::size_t>(i)].bytes(), from, stage_->mark(program_),
                    [&, i](const Status& status) {
                      EXPECT_TRUE(status.ok()) << "it had arrived";
                      ++ended;
                      if (i == kMany / 2) {
                        stage_->end(unavailable("over"));
                        stage_->fetch(blocks.back().bytes(), from, stage_->mark(program_),
                                      [&](Status end) { late = std::move(end); });
                      }
                    });
    }
  });
  device_->run();
  pass(std::chrono::milliseconds(20));
  EXPECT_EQ(ended, kMany);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->text(), "over");
}

TEST_F(DeviceStageTest, AFailureAtTheEndKeepsReturningBlocks) {
  std::vector<float> tensor = {1};
  run([&] {
    auto block = stage_->take(4);
    ASSERT_TRUE(block);
    EXPECT_TRUE(stage_->put_back(std::move(*block), reinterpret_cast<std::byte*>(tensor.data())).ok());
    stage_->end(Status(Code::kShutdown, "closed"));
    EXPECT_EQ(stage_->fail(unavailable("late")).text(), "closed");
  });
  pass(std::chrono::milliseconds(5));
  EXPECT_FALSE(stage_->drained()) << "the device still copies";
  device_->run();
  EXPECT_TRUE(stage_->drained());
}

TEST_F(DeviceStageTest, AFetchThatHasEndedHereMayStillBeOnTheDevice) {
  std::vector<float> tensor = {1};
  device::PinnedBlock block;
  const auto end = fetch(tensor, block);
  run([&] { stage_->end(Status(Code::kShutdown, "closed")); });
  EXPECT_TRUE(end->has_value());
  EXPECT_FALSE(stage_->drained());
  device_->run();
  EXPECT_TRUE(stage_->drained());
}

TEST_F(DeviceStageTest, AKernelOfTheProgramKeepsItFromBeingDrained) {
  FakeDevice::queue(program_.native, [] {});
  run([&] { stage_->end(Status(Code::kShutdown, "closed")); });
  EXPECT_FALSE(stage_->drained());
  device_->run();
  EXPECT_TRUE(stage_->drained());
  FakeDevice::queue(
      program_.native, [] {}, [] { return false; });
  EXPECT_TRUE(stage_->drained()) << "later work is not waited for";
}

TEST_F(DeviceStageTest, AnUnmarkedEndKeepsItFromBeingDrained) {
  device_->run();
  device_->refuse_next(unavailable("no context"));
  EXPECT_FALSE(stage_->drained());
  EXPECT_FALSE(stage_->drained());
}

TEST_F(DeviceStageTest, TheEndOfTheJobEndsIt) {
  std::vector<float> tensor = {1};
  device::PinnedBlock block;
  const auto end = fetch(tensor, block);
  over_ = Status(Code::kPeerLost, "rank 3 died");
  pass(std::chrono::milliseconds(5));
  ASSERT_TRUE(end->has_value());
  EXPECT_EQ((*end)->text(), "rank 3 died");
  EXPECT_TRUE(lost_.empty());
}

}  // namespace
}  // namespace sirtaki::engine
