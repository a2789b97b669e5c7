// NcclCollectivesTest: NcclCollectives of one rank over a fake NCCL and a fake device, driven step by step.
// Used by nccl_collectives_test.cc and nccl_sets_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "runtime/net/device/nccl/nccl_collectives.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/fake_nccl.h"
#include "tests/unit/net/device/nccl/ids.h"
#include "tests/unit/net/device/nccl/local_teardown.h"

namespace sirtaki::net::nccl {

using device::testing::FakeDevice;
using net::testing::ManualLoop;
using testing::FakeNccl;
using testing::Lines;
using testing::LocalIds;
using testing::LocalTeardown;

class NcclCollectivesTest : public ::testing::Test {
 protected:
  NcclCollectivesTest() { make({}); }
  ~NcclCollectivesTest() override {
    collectives_.reset();
    loop_.run([] { return false; });
    device_.run();
    EXPECT_EQ(device_.alive(), 1) << "but for a stream of the test";
  }

  void make(NcclOptions options) {
    collectives_.reset();
    options.size = 2;
    options.timeout = std::chrono::seconds(3);
    options.end_timeout = std::chrono::seconds(1);
    auto made = NcclCollectives::create({loop_, nccl_.api(), device_, ids_, log_, &host_ids_, &teardown_}, options);
    ASSERT_TRUE(made) << made.status().to_string();
    collectives_ = std::move(*made);
  }
  void connect() {
    Status connected(Code::kBug, "no answer");
    collectives_->connect_set(kJobSet, [&](Status status) { connected = std::move(status); });
    ASSERT_TRUE(loop_.run([&] { return connected.code() != Code::kBug; }));
    ASSERT_TRUE(connected.ok()) << connected.to_string();
  }
  // Starts an allreduce of 8 bytes with this tag; its result goes to ends_.
  void start(std::uint64_t tag, DeviceWork work = {}, ReduceOp op = ReduceOp::kSum, DType dtype = DType::kF32) {
    CollectiveArgs args;
    args.tag = OpTag(tag);
    args.op = op;
    args.dtype = dtype;
    args.in = Bytes(reinterpret_cast<std::byte*>(memory_), sizeof(memory_));
    args.out = Bytes(reinterpret_cast<std::byte*>(memory_), sizeof(memory_));
    collectives_->start_work(args, std::move(work), [this, tag](Status status) {
      EXPECT_FALSE(ends_.contains(tag)) << "twice";
      ends_.emplace(tag, std::move(status));
    });
    EXPECT_FALSE(ends_.contains(tag)) << "called from inside";
  }
  static DeviceWork on_host(bool more = false) {
    DeviceWork work;
    work.on_host = true;
    work.more = more;
    return work;
  }
  static DeviceWork with_more() {
    DeviceWork work;
    work.more = true;
    return work;
  }
  // Runs due tasks, and those of the next 20 ms.
  void run_briefly() {
    const TimePoint until = loop_.now() + std::chrono::milliseconds(20);
    loop_.run([&] { return loop_.now() >= until; });
  }
  Code code(std::uint64_t tag) { return ends_.contains(tag) ? ends_.at(tag).code() : Code::kBug; }
  bool wait(std::uint64_t tag) {
    return loop_.run([&] { return ends_.contains(tag); });
  }

  std::vector<std::string> lines_;
  Logger log_{LoggerOptions{}, std::make_unique<Lines>(lines_)};
  ManualLoop loop_;
  FakeNccl nccl_;
  LocalIds ids_{loop_};
  LocalIds host_ids_{loop_};
  LocalTeardown teardown_;
  FakeDevice device_;
  device::Stream stream_ = *device_.make_stream(device::Priority::kNormal);
  float memory_[2] = {6, 8};
  std::unique_ptr<NcclCollectives> collectives_;
  std::map<std::uint64_t, Status> ends_;
};

}  // namespace sirtaki::net::nccl
