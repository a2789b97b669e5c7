#include "tests/conformance/loopback.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>

#include "runtime/rendezvous/link/asio_loop.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::net::testing {
namespace {

using device::testing::FakeDevice;

class LoopbackTest : public ::testing::Test {
 protected:
  LoopbackTest() {
    auto group = LoopbackGroup::create(device_, 2, {.most_in_flight = 2});
    EXPECT_TRUE(group);
    group_ = *group;
    for (Rank rank = 0; rank < 2; ++rank) {
      ranks_[static_cast<std::size_t>(rank)] = group_->member(rank, loop_);
    }
  }
  ~LoopbackTest() override {
    ranks_ = {};
    loop_.run([] { return false; });
  }

  CollectiveArgs args(std::size_t rank, std::uint64_t tag) {
    CollectiveArgs args;
    args.tag = OpTag(tag);
    args.op = ReduceOp::kAverage;
    args.in = args.out = Bytes(reinterpret_cast<std::byte*>(&memory_[rank]), sizeof(memory_[rank]));
    return args;
  }
  void start(std::size_t rank, std::uint64_t tag, DeviceWork work = {}) {
    ranks_[rank]->start_work(args(rank, tag), std::move(work), [this, rank](Status status) {
      ++ends_[rank];
      last_[rank] = std::move(status);
    });
  }
  void run_briefly() {
    const TimePoint until = loop_.now() + std::chrono::milliseconds(2);
    loop_.run([&] { return loop_.now() >= until; });
  }

  ManualLoop loop_;
  FakeDevice device_;
  std::shared_ptr<LoopbackGroup> group_;
  std::array<std::unique_ptr<LoopbackCollectives>, 2> ranks_;
  std::array<std::array<float, 3>, 2> memory_{{{1, 2, 3}, {5, 6, 7}}};
  std::array<int, 2> ends_{};
  std::array<Status, 2> last_;
};

TEST_F(LoopbackTest, WaitsOnTheDeviceForTheInput) {
  const device::Stream stream = *device_.make_stream(device::Priority::kNormal);
  const device::Event ready = *device_.make_event();
  device_.hold();
  ASSERT_TRUE(device_.record(ready, stream).ok());
  start(0, 1, {.ready = ready});
  start(1, 1);
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{0, 0}));
  device_.run();
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{1, 1}));
  for (const auto& result : memory_) {
    EXPECT_EQ(result, (std::array<float, 3>{3, 4, 5}));
  }
}

TEST_F(LoopbackTest, CancellingLeavesTheOthersWaiting) {
  start(0, 1);
  ranks_[0]->cancel(OpTag(1), {Code::kMismatch, "given up"});
  EXPECT_EQ(ends_[0], 0) << "called from inside";
  run_briefly();
  EXPECT_EQ(ends_[0], 1);
  EXPECT_EQ(last_[0].code(), Code::kMismatch);
  start(1, 1);
  run_briefly();
  EXPECT_EQ(ends_[1], 0);
  ranks_[1]->cancel(OpTag(1), {Code::kMismatch, "given up"});
  run_briefly();
  EXPECT_EQ(ends_[1], 1);
  start(0, 1);
  start(1, 1);
  run_briefly();
  EXPECT_TRUE(last_[0].ok() && last_[1].ok());
  EXPECT_EQ(ends_, (std::array<int, 2>{2, 2}));
}

TEST_F(LoopbackTest, KeepsTheBuffersOfWhatTheDeviceWorksOn) {
  device_.hold();
  start(0, 1);
  start(1, 1);
  ranks_[0]->abort({Code::kAborted, "before it heard of the launch"});
  run_briefly();
  ranks_[1]->cancel(OpTag(1), {Code::kAborted, "after it"});
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{0, 0}));
  device_.run();
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{1, 1}));
  EXPECT_EQ(last_[0].code(), Code::kAborted);
  EXPECT_EQ(last_[1].code(), Code::kAborted);
}

TEST_F(LoopbackTest, SaysWhenTooMuchIsInFlight) {
  device_.hold();
  for (std::uint64_t tag = 1; tag <= 3; ++tag) {
    start(0, tag);
    start(1, tag);
  }
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{1, 1}));
  EXPECT_EQ(last_[0].code(), Code::kExhausted);
  device_.run();
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{3, 3}));
  start(0, 4);
  start(1, 4);
  run_briefly();
  EXPECT_TRUE(last_[0].ok() && last_[1].ok()) << "events have come back";
}

TEST_F(LoopbackTest, PassesErrorsOfTheDeviceOn) {
  device_.hold();
  start(0, 1);
  start(1, 1);
  run_briefly();
  device_.break_down({Code::kUnavailable, "an illegal address"});
  run_briefly();
  EXPECT_EQ(ends_, (std::array<int, 2>{1, 1}));
  EXPECT_EQ(last_[1].code(), Code::kUnavailable);
}

TEST(LoopbackThreads, AddInOrderOnTheStreamsOfSeveralThreads) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 50;
  FakeDevice device;
  auto group = LoopbackGroup::create(device, kRanks);
  ASSERT_TRUE(group);
  struct Node {
    std::unique_ptr<rendezvous::AsioLoop> loop;
    std::unique_ptr<LoopbackCollectives> collectives;
    std::vector<std::vector<float>> memory;
  };
  std::vector<Node> nodes(kRanks);
  std::atomic<int> good{0};
  std::atomic<int> ended{0};
  for (Rank rank = 0; rank < kRanks; ++rank) {
    Node& node = nodes[static_cast<std::size_t>(rank)];
    node.memory.assign(kRounds, std::vector<float>(1000, static_cast<float>(rank + 1)));
    node.loop = std::make_unique<rendezvous::AsioLoop>("rank" + std::to_string(rank));
    node.loop->run_sync([&] { node.collectives = (*group)->member(rank, *node.loop); });
  }
  for (Node& node : nodes) {
    node.loop->post([&] {
      for (std::size_t round = 0; round < kRounds; ++round) {
        CollectiveArgs args;
        args.tag = OpTag(round);
        args.in = args.out = Bytes(reinterpret_cast<std::byte*>(node.memory[round].data()), 4000);
        node.collectives->start(args, [&](Status status) {
          good += status.ok() ? 1 : 0;
          ++ended;
          testing::notify();
        });
      }
    });
  }
  EXPECT_TRUE(testing::wait_until([&] { return ended == kRanks * kRounds; }));
  EXPECT_EQ(good, kRanks * kRounds);
  for (Node& node : nodes) {
    node.loop->run_sync([&] { node.collectives.reset(); });
    for (const auto& result : node.memory) {
      EXPECT_EQ(result, std::vector<float>(1000, 10));
    }
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
