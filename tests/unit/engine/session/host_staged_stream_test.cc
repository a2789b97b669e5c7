// HostStagedStream: calls of a stream with tensors on a GPU that uses GPU memory in some steps only.
#include "runtime/engine/session/host_staged_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/ids.h"

namespace sirtaki::engine {
namespace {

using device::testing::FakeDevice;
using net::nccl::testing::Lines;

class HostStagedStreamTest : public ::testing::Test {
 protected:
  HostStagedStreamTest() {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    program_ = *device_->make_stream(device::Priority::kNormal);
    Loop& loop = world_->link(0).loop();
    auto stage = DeviceStage::create(std::move(device),
                                     {loop, stats_, 0, "cuda:0", [] { return Status(); }, [](const Status&) {}}, {});
    SRT_CHECK(stage);
    stage_ = std::move(*stage);
    plane_ = std::make_unique<DeviceTransport>(
        DeviceTransportDeps{loop, world_->at(0), world_->link(0), nullptr, *stage_, log_, stats_, [](const Status&) {}},
        DeviceTransportOptions{}, unavailable("there is no NCCL here"));
    SRT_CHECK(plane_->open_copies().ok());
    calls_ = std::make_shared<HostStagedStream>(*stage_, plane_.get(), [this] { return in_place_; });
    device_->hold();
  }
  ~HostStagedStreamTest() override {
    device_->run();
    settle();
    calls_.reset();
    plane_->close();
    plane_.reset();
    stage_.reset();
  }

  void settle() {
    const TimePoint until = world_->link(0).loop().now() + std::chrono::milliseconds(20);
    static_cast<void>(world_->wait([&] { return world_->link(0).loop().now() >= until; }));
  }
  void ready(int index, std::vector<float>& tensor) {
    TensorView view;
    view.data = reinterpret_cast<std::byte*>(tensor.data());
    view.numel = static_cast<std::int64_t>(tensor.size());
    view.dtype = DType::kF32;
    calls_->ready(index, {view, program_, stage_->mark(program_), true}, [this](const TensorView& handed_over) {
      seen_.push_back(handed_over);
      return true;
    });
  }
  static bool is(const TensorView& view, const std::vector<float>& tensor) {
    return view.data == reinterpret_cast<const std::byte*>(tensor.data());
  }
  static float first_of(const TensorView& view) {
    float value = 0;
    std::memcpy(&value, view.data, sizeof value);
    return value;
  }

  std::unique_ptr<net::testing::World> world_ = net::testing::make_local_world(1);
  Stats stats_;
  std::vector<std::string> lines_;
  Logger log_{LoggerOptions{}, std::make_unique<Lines>(lines_)};
  FakeDevice* device_ = nullptr;
  device::Stream program_;
  std::unique_ptr<DeviceStage> stage_;
  std::unique_ptr<DeviceTransport> plane_;
  std::shared_ptr<HostStagedStream> calls_;
  bool in_place_ = true;
  std::vector<TensorView> seen_;
};

TEST_F(HostStagedStreamTest, LeavesTensorsOnTheGpuForAStepThatWorksThere) {
  std::vector<float> tensor = {1, 2};
  ready(0, tensor);
  settle();
  EXPECT_TRUE(seen_.empty()) << "the GPU has not come to it";
  device_->run();
  settle();
  ASSERT_EQ(seen_.size(), 1U);
  EXPECT_TRUE(is(seen_[0], tensor));
  EXPECT_EQ(stats_.counter("device.fetched_bytes").value(), 0U);
}

TEST_F(HostStagedStreamTest, FetchesThemForAStepThatDoesNot) {
  in_place_ = false;
  std::vector<float> tensor = {1, 2};
  ready(0, tensor);
  in_place_ = true;  // set for the next step; the step of this call has begun
  device_->run();
  settle();
  ASSERT_EQ(seen_.size(), 1U);
  EXPECT_FALSE(is(seen_[0], tensor));
  EXPECT_EQ(first_of(seen_[0]), 1);
}

TEST_F(HostStagedStreamTest, FetchesWhatWasLeftForAStepThatWasGivenUpMeanwhile) {
  std::vector<float> one = {1, 2};
  std::vector<float> two = {3, 4};
  std::size_t seen_before_the_call = 0;
  ready(0, one);
  ready(1, two);
  calls_->call([&](const Status& given_up) { seen_before_the_call = given_up.ok() ? seen_.size() : 99; });
  in_place_ = false;
  device_->run();
  settle();
  device_->run();
  settle();
  ASSERT_EQ(seen_.size(), 2U);
  EXPECT_FALSE(is(seen_[0], one) || is(seen_[1], two));
  EXPECT_EQ(first_of(seen_[0]), 1);
  EXPECT_EQ(first_of(seen_[1]), 3);
  EXPECT_EQ(seen_before_the_call, 2U) << "calls keep their order";
  const float result = 7;
  std::memcpy(seen_[1].data, &result, sizeof result);
  calls_->result(1);
  Status ended = unavailable("not yet");
  calls_->at_end([&](const Status& status) { ended = status; })({});
  EXPECT_TRUE(ended.ok()) << ended.to_string();
  device_->run();
  EXPECT_EQ(two[0], 7) << "results are put back";
}

TEST_F(HostStagedStreamTest, AResultReturnsAtOnce) {
  calls_ = std::make_shared<HostStagedStream>(*stage_, nullptr, [] { return false; });
  std::vector<float> one = {1, 2};
  std::vector<float> two = {3, 4};
  ready(0, one);
  ready(1, two);
  device_->run();
  settle();
  ASSERT_EQ(seen_.size(), 2U);
  device_->hold();
  const float results[] = {7, 8};
  std::memcpy(seen_[1].data, &results[1], sizeof(float));
  calls_->result(1);
  calls_->result(1);
  FakeDevice::queue(program_.native, [] {});
  EXPECT_TRUE(device_->step(program_)) << "the backward pass does not wait for the copy";
  device_->catch_up();
  EXPECT_EQ(two[0], 8) << "although the other result is missing";
  EXPECT_EQ(one[0], 1);
  std::memcpy(seen_[0].data, results, sizeof(float));
  calls_->result(0);
  calls_->at_end([](const Status& status) { EXPECT_TRUE(status.ok()); })({});
  float seen_by_the_program = 0;
  FakeDevice::queue(program_.native, [&] { seen_by_the_program = one[0]; });
  EXPECT_FALSE(device_->step(program_)) << "the optimizer waits for it";
  device_->catch_up();
  EXPECT_EQ(seen_by_the_program, 7);
  EXPECT_EQ(stats_.counter("device.returned_bytes").value(), 16U);
}

TEST_F(HostStagedStreamTest, IsNotReleasedWhileItFetches) {
  std::vector<float> tensor = {1, 2};
  ready(0, tensor);
  in_place_ = false;
  device_->run();
  device_->hold();
  settle();
  EXPECT_TRUE(seen_.empty()) << "fetched anew, and the GPU does not come to it";
  bool released = false;
  calls_->give_up({Code::kAborted, "test"}, [&] { released = true; })();
  settle();
  EXPECT_FALSE(released);
  device_->run();
  settle();
  EXPECT_TRUE(released);
  EXPECT_TRUE(seen_.empty());
}

}  // namespace
}  // namespace sirtaki::engine
