// The decision for or against NCCL, which is fake, the reuse of device memory, and its shortage.
#include "runtime/engine/device/device_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/device/path_selector.h"
#include "runtime/net/device/nccl/communicator.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/conformance/fake_nccl.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/ids.h"
#include "tests/unit/scheduler/plan/plans.h"

namespace sirtaki::engine {
namespace {

using device::testing::FakeDevice;
using net::nccl::testing::Lines;

constexpr int kRanks = 2;

// Forwards everything, and damages one received byte on demand.
class SpoilingNet final : public net::Collectives {
 public:
  explicit SpoilingNet(net::Collectives& inner) : inner_(inner) {}
  net::Caps caps() const override { return inner_.caps(); }
  Rank rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<net::Collectives> part(const std::vector<Rank>& ranks) override { return inner_.part(ranks); }
  void start(net::CollectiveArgs args, Done done) override {
    const Bytes out = args.out;
    inner_.start(std::move(args), [at = spoiled_at, out, done = std::move(done)](const Status& status) mutable {
      if (at) {
        out[*at] ^= std::byte{0x80};
      }
      done(status);
    });
  }
  void cancel(net::TagGroup tags, Status cause) override { inner_.cancel(tags, std::move(cause)); }
  void abort(Status cause) override { inner_.abort(std::move(cause)); }

  std::optional<std::size_t> spoiled_at;

 private:
  net::Collectives& inner_;
};

class DeviceTransportTest : public ::testing::Test {
 protected:
  struct Member {
    std::unique_ptr<SpoilingNet> net;
    FakeDevice* device = nullptr;
    Stats stats;
    std::unique_ptr<net::LaunchServer> launches;  // on rank 0
    std::vector<std::string> lines;
    std::unique_ptr<Logger> log;
    std::unique_ptr<DeviceStage> stage;
    std::unique_ptr<DeviceTransport> transport;
    std::vector<Status> broken;
    std::optional<Status> answer;
    std::unique_ptr<PathSelector> selector;

    bool logged(const std::string& text) const {
      return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(text) != std::string::npos; });
    }
  };

  DeviceTransportTest() {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      open(rank);
    }
  }
  ~DeviceTransportTest() override {
    for (Member& member : members_) {
      if (member.transport) {
        member.transport->close();
      }
      member.transport.reset();
      member.launches.reset();
      member.stage.reset();
    }
    static_cast<void>(world_->wait([] { return false; }));
  }

  Member& at(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }
  Loop& loop() { return world_->link(0).loop(); }

  void open(Rank rank) {
    Member& member = at(rank);
    member.net = std::make_unique<SpoilingNet>(world_->at(rank));
    LoggerOptions log;
    log.timestamps = false;
    member.log = std::make_unique<Logger>(log, std::make_unique<Lines>(member.lines));
    auto device = std::make_unique<FakeDevice>();
    member.device = device.get();
    auto stage = DeviceStage::create(
        std::move(device), {loop(), member.stats, rank, "cuda:0", [] { return Status(); }, [](const Status&) {}}, {});
    SRT_CHECK(stage);
    member.stage = std::move(*stage);
    if (rank == 0) {
      member.launches = std::make_unique<net::LaunchServer>(world_->link(rank), net::LaunchServerOptions{launch_tag()},
                                                            [](const Status& /*why*/) {});
    }
    make_transport(rank, 22809);
  }
  void make_transport(Rank rank, int version, const std::string& data = "auto") {
    Member& member = at(rank);
    DeviceTransportOptions options;
    options.data = data;
    options.nccl.communicator.connect_timeout = std::chrono::seconds(2);
    member.transport = std::make_unique<DeviceTransport>(
        DeviceTransportDeps{loop(), *member.net, world_->link(rank), member.launches.get(), *member.stage, *member.log,
                            member.stats, [&member](const Status& why) { member.broken.push_back(why); }},
        options, net::nccl::Library{nccl_.api(), version, "a test"});
  }
  // Runs until the loop is idle.
  void run_until_idle() {
    for (Member& member : members_) {
      member.transport->when_decided(
          [&member](const DeviceTransport::Answer& answer) { member.answer = answer.status(); });
    }
    static_cast<void>(world_->wait([] { return false; }));
  }
  // Lets both ranks decide about a set, and returns their answers.
  std::array<std::optional<Status>, kRanks> decide_set() {
    std::array<std::optional<Status>, kRanks> answers;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      at(rank).transport->when_decided(set_, [this, &answers, place](const DeviceTransport::Answer& answer) {
        answers[place] = answer.status();
        devices_[place] = answer ? *answer : nullptr;
      });
    }
    static_cast<void>(world_->wait([] { return false; }));
    return answers;
  }
  void run_briefly() {
    static_cast<void>(
        world_->wait([this, until = loop().now() + std::chrono::seconds(1)] { return loop().now() >= until; }));
  }
  void expect_all_on_the_host(const std::string& why) {
    for (Member& member : members_) {
      EXPECT_EQ(member.transport->name(), "host");
      EXPECT_TRUE(member.answer && member.answer->ok());
      EXPECT_TRUE(member.broken.empty());
    }
    EXPECT_TRUE(at(0).logged("GPU tensors are staged through host memory, not sent over NCCL: " + why))
        << ::testing::PrintToString(at(0).lines);
    EXPECT_FALSE(at(1).logged("GPU tensors are staged")) << "logged once, by rank 0";
  }

  net::testing::FakeNccl nccl_;
  std::unique_ptr<net::testing::World> world_ = net::testing::make_local_world(kRanks);
  std::array<Member, kRanks> members_;
  const std::vector<Rank> set_ = {0, 1};
  std::array<net::DeviceCollectives*, kRanks> devices_{};
};

TEST_F(DeviceTransportTest, RanksWithNcclUseIt) {
  EXPECT_EQ(at(0).transport->name(), "undecided");
  run_until_idle();
  for (Member& member : members_) {
    EXPECT_EQ(member.transport->name(), "nccl");
    EXPECT_TRUE(member.answer && member.answer->ok());
  }
}

TEST_F(DeviceTransportTest, ADamagedReportEndsTheJob) {
  at(1).net->spoiled_at = 3;  // the highest byte of rank 0's version
  run_until_idle();
  ASSERT_EQ(at(1).broken.size(), 1U);
  EXPECT_EQ(at(1).broken[0].code(), Code::kCorrupt);
  EXPECT_EQ(at(1).broken[0].blame().rank, 0);
  EXPECT_NE(at(1).broken[0].text().find("rank 0: its report about NCCL is invalid"), std::string_view::npos)
      << at(1).broken[0].text();
  EXPECT_FALSE(at(1).answer.has_value()) << "the job is about to end";
  at(1).transport->abort(at(1).broken[0]);
  EXPECT_TRUE(at(1).answer.has_value());
}

TEST_F(DeviceTransportTest, DifferentVersionsUseHostMemory) {
  make_transport(1, 21801);
  run_until_idle();
  expect_all_on_the_host("rank 1 has NCCL 2.18.1 and rank 0 has 2.28.9");
}

TEST_F(DeviceTransportTest, AGpuWithoutKernelsMakesAllUseHostMemory) {
  at(1).device->refuse_kernels(unavailable("no kernels"));
  run_until_idle();
  expect_all_on_the_host("rank 1: no kernels");
}

TEST_F(DeviceTransportTest, DifferentVersionsAreAnErrorIfNcclIsRequired) {
  make_transport(0, 22809, "nccl");
  make_transport(1, 21801, "nccl");
  run_until_idle();
  for (Member& member : members_) {
    EXPECT_EQ(member.transport->name(), "refused");
    EXPECT_EQ(member.answer->text(), "device.data = nccl: rank 1 has NCCL 2.18.1 and rank 0 has 2.28.9");
  }
}

TEST_F(DeviceTransportTest, TwoRanksOnOneGpuUseHostMemory) {
  nccl_.put_on_one_gpu();
  const int before = at(0).device->alive();
  run_until_idle();
  expect_all_on_the_host(
      "rank 0: communicator 'job' of rank 0: connecting: NCCL reports invalid usage, Duplicate GPU detected : rank "
      "0 "
      "and rank 1 both on CUDA device 1b000");
  at(0).transport->close();
  EXPECT_EQ(at(0).device->alive(), before) << "everything made for NCCL is released";
}

// ---- process sets: one of both ranks, which is not the job ----

TEST_F(DeviceTransportTest, ASetUsesNcclBesideTheJob) {
  for (const bool job_first : {true, false}) {
    if (job_first) {
      run_until_idle();
    }
    const auto answers = decide_set();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(answers[static_cast<std::size_t>(rank)]->ok());
      EXPECT_EQ(at(rank).transport->name(), "nccl");
      EXPECT_FALSE(at(rank).transport->host_only(set_));
    }
  }
  EXPECT_EQ(devices_[0]->rank(), 0);
  EXPECT_EQ(devices_[1]->rank(), 1);
}

TEST_F(DeviceTransportTest, ASetIsDecidedWithoutTheJob) {
  decide_set();
  EXPECT_EQ(at(0).transport->name(), "nccl");
  run_until_idle();
  for (Member& member : members_) {
    EXPECT_TRUE(member.answer && member.answer->ok());
  }
}

TEST_F(DeviceTransportTest, ASetOfDifferentVersionsUsesHostMemory) {
  make_transport(1, 21801);
  decide_set();
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(devices_[static_cast<std::size_t>(rank)], nullptr);
    EXPECT_TRUE(at(rank).transport->host_only(set_));
    EXPECT_TRUE(at(rank).broken.empty());
  }
  const std::string text =
      "GPU tensors of the process set of ranks 0, 1 are staged through host memory, not sent over NCCL";
  EXPECT_TRUE(at(0).logged(text)) << ::testing::PrintToString(at(0).lines);
}

TEST_F(DeviceTransportTest, ARankWithoutKernelsBringsItsSetsToHostMemory) {
  at(1).device->refuse_kernels(unavailable("no kernels"));
  decide_set();
  EXPECT_TRUE(at(0).transport->host_only(set_) && at(1).transport->host_only(set_));
  EXPECT_TRUE(at(0).logged("rank 1 cannot use NCCL; its log says why")) << ::testing::PrintToString(at(0).lines);
  EXPECT_TRUE(at(1).logged("not sent over NCCL: no kernels")) << ::testing::PrintToString(at(1).lines);
}

TEST_F(DeviceTransportTest, ASetThatCannotConnectUsesHostMemory) {
  nccl_.put_on_one_gpu();
  decide_set();
  EXPECT_TRUE(at(0).transport->host_only(set_) && at(1).transport->host_only(set_));
  EXPECT_TRUE(at(0).logged(" could not connect")) << ::testing::PrintToString(at(0).lines);
}

TEST_F(DeviceTransportTest, ASetWithoutNcclIsAnErrorIfNcclIsRequired) {
  make_transport(0, 22809, "nccl");
  make_transport(1, 21801, "nccl");
  for (const auto& answer : decide_set()) {
    EXPECT_EQ(answer->code(), Code::kUnavailable);
    EXPECT_NE(answer->text().find("device.data = nccl: rank "), std::string_view::npos) << answer->text();
  }
}

TEST_F(DeviceTransportTest, AnAbortAnswersASetThatWaits) {
  std::optional<Status> answer;
  at(1).transport->when_decided(set_, [&](const DeviceTransport::Answer& set) { answer = set.status(); });
  run_briefly();
  EXPECT_FALSE(answer.has_value()) << "rank 0 has not asked";
  at(1).transport->abort({Code::kAborted, "the job is over"});
  run_briefly();
  EXPECT_EQ(answer->text(), "the job is over");
  at(1).transport->when_decided(set_, [&](const DeviceTransport::Answer& set) { answer = set.status(); });
  at(1).transport->when_decided({0, 1, 2}, [&](const DeviceTransport::Answer& set) { answer = set.status(); });
  run_briefly();
  EXPECT_EQ(answer->text(), "the job is over") << "later, too";
}

TEST_F(DeviceTransportTest, ASetThatWaitsKeepsNoMemory) {
  run_until_idle();
  at(1).transport->when_decided(set_, [](const DeviceTransport::Answer& /*set*/) {});
  run_briefly();
  ASSERT_TRUE(at(1).transport->take(1000));
  const int before = at(1).device->device_memory_calls();
  bool released = false;
  at(1).transport->release_spare([&](const Status& status) { released = status.ok(); });
  run_briefly();
  EXPECT_TRUE(released);
  EXPECT_EQ(at(1).device->device_memory_calls(), before + 1);
}

TEST_F(DeviceTransportTest, ARankLeavesInOrderWhileASetWaits) {
  run_until_idle();
  std::optional<Status> answer;
  at(1).transport->when_decided(set_, [&](const DeviceTransport::Answer& set) { answer = set.status(); });
  run_briefly();
  int left = 0;
  at(1).transport->leave({Code::kShutdown, "rank 1 leaves"}, [&] { ++left; });
  run_briefly();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->text(), "rank 1 leaves");
  at(0).transport->leave({Code::kShutdown, "rank 0 leaves"}, [&] { ++left; });
  // Communicators end on threads, which the time of this loop knows nothing of.
  ASSERT_TRUE(world_->wait([&] { return left == 2; }));
  EXPECT_EQ(nccl_.aborts(), 0);
  EXPECT_FALSE(at(1).logged("is aborted")) << ::testing::PrintToString(at(1).lines);
  at(1).transport->when_decided(set_, [&](const DeviceTransport::Answer& set) { answer = set.status(); });
  run_briefly();
  EXPECT_EQ(answer->text(), "rank 1 leaves") << "later, too";
}

TEST_F(DeviceTransportTest, BlocksAreReusedAndKept) {
  run_until_idle();
  FakeDevice& device = *at(0).device;
  const int before = device.device_memory_calls();
  for (const std::size_t bytes : {1000U, 2000U, 4000U, 3000U}) {
    ASSERT_TRUE(at(0).transport->take(bytes));
  }
  EXPECT_EQ(device.device_memory_calls(), before + 3) << "the last one fits into the one before";
  device.be_slow();
  const Result<std::shared_ptr<std::byte>> used = at(0).transport->take(1000);
  std::optional<Status> released;
  at(0).transport->release_spare([&](Status status) { released = std::move(status); });
  static_cast<void>(world_->wait([] { return false; }));
  EXPECT_TRUE(released && released->ok());
  EXPECT_EQ(device.device_memory_calls(), before + 5) << "but not the one in use";
}

TEST_F(DeviceTransportTest, MemoryIsKeptWhileCopiesUseIt) {
  run_until_idle();
  FakeDevice& device = *at(0).device;
  std::vector<std::byte> here(1000);
  auto memory = at(0).transport->take(here.size());
  ASSERT_TRUE(memory);
  device.hold();
  ASSERT_TRUE(at(0).transport->copy(here.data(), memory->get(), here.size()).ok());
  memory->reset();
  const int before = device.device_memory_calls();
  bool released = false;
  at(0).transport->release_spare([&](const Status& status) { released = status.ok(); });
  run_briefly();
  EXPECT_FALSE(released);
  EXPECT_EQ(device.device_memory_calls(), before);
  device.run();
  run_briefly();
  EXPECT_TRUE(released);
  EXPECT_EQ(device.device_memory_calls(), before + 1);
}

TEST_F(DeviceTransportTest, AShortageIsNoLossOfTheGpu) {
  run_until_idle();
  at(0).device->limit_memory(1000, 950);
  EXPECT_EQ(at(0).transport->take(51).status().code(), Code::kExhausted);
  EXPECT_EQ(at(0).transport->take_refusal(), 51U);
  EXPECT_FALSE(at(0).transport->take_refusal()) << "once";
  EXPECT_TRUE(at(0).transport->take(50));
}

TEST_F(DeviceTransportTest, IfARankLacksMemoryAllUseThatOfTheHost) {
  run_until_idle();
  const auto plan = scheduler::make_plan({{"one", 100, DType::kF32}, {"two", 900, DType::kF32}});
  const auto select = [&](const std::string& name) {
    std::array<std::optional<Result<SelectedPath>>, kRanks> paths;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      Member& member = at(rank);
      member.transport->when_decided([&](const DeviceTransport::Answer& answer) {
        PathOptions options;
        options.fusion_bytes = 1 << 20;
        member.selector = std::make_unique<PathSelector>(*member.stage, *member.transport, *member.net, options);
        member.selector->select(
            {StreamId(7), name, {.dense = true}, *plan}, *answer,
            [&paths, rank](Result<SelectedPath> path) { paths[static_cast<std::size_t>(rank)] = std::move(path); });
      });
    }
    static_cast<void>(world_->wait([] { return false; }));
    return paths;
  };
  at(1).device->limit_memory(80000, 76000);
  const int before = at(0).device->device_memory_calls();
  for (const auto& path : select("training")) {
    ASSERT_TRUE(path && *path) << "no rank fails";
    EXPECT_FALSE((*path)->dense);
  }
  EXPECT_EQ(at(0).device->device_memory_calls(), before + 2) << "its memory is released";
  const std::string line =
      "stream 'training': gradients travel through host memory, because rank 1 cannot allocate 4352 "
      "bytes of GPU memory for residuals and buffers";
  EXPECT_TRUE(at(0).logged(line)) << ::testing::PrintToString(at(0).lines);
  EXPECT_FALSE(at(1).logged(line)) << "logged once, by rank 0";
  at(1).device->limit_memory(80000, 70000);
  for (const auto& path : select("another")) {
    ASSERT_TRUE(path && *path);
    EXPECT_TRUE((*path)->dense);
  }
}

// The stream for copies cannot be made, so no block has been refused.
TEST_F(DeviceTransportTest, AShortageWithoutABlockIsNotTakenForMissingKernels) {
  const auto plan = scheduler::make_plan({{"one", 100, DType::kF32}});
  std::array<std::optional<Result<SelectedPath>>, kRanks> paths;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    make_transport(rank, 22809, "host");
    Member& member = at(rank);
    member.selector = std::make_unique<PathSelector>(*member.stage, *member.transport, *member.net, PathOptions());
  }
  at(1).device->limit_memory(1000, 1000);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    at(rank).selector->select(
        {StreamId(7), "training", {.compressed = true}, *plan}, nullptr,
        [&paths, rank](Result<SelectedPath> path) { paths[static_cast<std::size_t>(rank)] = std::move(path); });
  }
  static_cast<void>(world_->wait([] { return false; }));
  for (const auto& path : paths) {
    ASSERT_TRUE(path && *path) << "no rank fails";
    EXPECT_FALSE((*path)->dense);
  }
  EXPECT_TRUE(at(0).logged("because rank 1 cannot allocate GPU memory for residuals and buffers"))
      << ::testing::PrintToString(at(0).lines);
}

// A copy never ends, and releasing memory would wait for it.
TEST_F(DeviceTransportTest, AGpuThatHangsDoesNotBlockTheEnd) {
  run_until_idle();
  const auto seen = at(0).device->watch();
  std::vector<std::byte> here(1000);
  auto memory = at(0).transport->take(here.size());
  ASSERT_TRUE(memory);
  at(0).device->hold();
  ASSERT_TRUE(at(0).transport->copy(here.data(), memory->get(), here.size()).ok());
  memory->reset();
  bool left = false;
  at(0).transport->leave({Code::kShutdown, "test"}, [&] { left = true; });
  run_briefly();
  EXPECT_FALSE(left);
  at(0).transport->close();
  at(0).transport.reset();
  at(0).stage.reset();
  EXPECT_EQ(seen->stuck, 0);
}

TEST_F(DeviceTransportTest, CopiesAreMarkedWithoutAVisit) {
  run_until_idle();
  const int before = at(0).device->visits();
  EXPECT_TRUE(at(0).transport->mark_copies());
  EXPECT_EQ(at(0).device->visits(), before) << "the loop's thread has entered the device";
}

}  // namespace
}  // namespace sirtaki::engine
