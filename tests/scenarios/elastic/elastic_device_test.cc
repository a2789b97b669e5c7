// An elastic job with fake GPUs: a GPU or NCCL that fails is a loss of its rank, or the end of an epoch.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "tests/conformance/fake_nccl.h"
#include "tests/scenarios/elastic/support.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::engine {
namespace {

using device::testing::FakeDevice;
using net::testing::FakeNccl;
using Owner = std::unique_ptr<device::DeviceApi>;

// The GPU of a process, for the first session that uses it.
class Gpu {
 public:
  // `nccl`: may be null.
  Gpu(Process& process, const FakeNccl* nccl) : owner_(std::make_unique<FakeDevice>()), device_(owner_.get()) {
    stream_ = device_->make_stream(device::Priority::kNormal)->native;
    device_->be_slow();  // NCCL of one rank waits for that of another
    process.equip = [this, nccl](JobSpec& job) {
      job.open_device = [this](int /*index*/) -> Result<Owner> {
        SRT_TRY(device_->enter_thread());
        return Owner(std::move(owner_));
      };
      job.open_nccl = [nccl](const net::nccl::LoadOptions& /*options*/) -> Result<net::nccl::Library> {
        return nccl == nullptr ? Result<net::nccl::Library>(unavailable("there is no NCCL here"))
                               : net::nccl::Library{nccl->api(), 22809, "a test"};
      };
    };
  }

  // Sums over a process set.
  Status sum(Process& process, const std::vector<Rank>& ranks, float& total) {
    const Status status = process.sum(total, {DeviceType::kCuda, 0}, stream_, ranks);
    if (status.ok()) {
      device_->catch_up();
    }
    return status;
  }
  void break_down() { device_->break_down(unavailable("an illegal address")); }
  // Sums on the GPU until that fails.
  Status work(Process& process) {
    float total = 0;
    Status status;
    while (status.ok()) {
      status = process.sum(total, {DeviceType::kCuda, 0}, stream_);
    }
    return status;
  }

 private:
  std::unique_ptr<FakeDevice> owner_;
  FakeDevice* const device_;
  void* stream_ = nullptr;
};

TEST(ElasticDeviceTest, ARankThatHasLostItsGpuIsLostAndTheOthersGoOn) {
  Hub hub(2, 1);
  run(hub, [&](Process& process) {
    Gpu gpu(process, nullptr);
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      gpu.break_down();
      const Status broken = gpu.work(process);
      EXPECT_TRUE(contains(broken, "rank 1 has lost its GPU, cuda:0: an illegal address")) << broken.to_string();
      return process.die();
    }
    const Status lost = gpu.work(process);
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0});
    process.shutdown();
  });
}

// The driver may never return to a program whose GPU is lost.
TEST(ElasticDeviceTest, TheOthersGoOnWithoutALostGpuWhateverItsProgramDoes) {
  Hub hub(2, 1, "2s");
  std::promise<void> alone;
  std::future<void> went_on = alone.get_future();
  run(hub, [&](Process& process) {
    Gpu gpu(process, nullptr);
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      gpu.break_down();
      const Status broken = gpu.work(process);
      EXPECT_TRUE(contains(broken, "rank 1 has lost its GPU")) << broken.to_string();
      EXPECT_EQ(went_on.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      return process.die();
    }
    const Status lost = gpu.work(process);
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_EQ(lost.blame().rank, 1);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0});
    alone.set_value();
    process.shutdown();
  });
}

TEST(ElasticDeviceTest, AnErrorOfNcclEndsTheEpochAndNotTheJob) {
  FakeNccl nccl;
  nccl.break_down(1, 6);
  Hub hub(2, 1);
  run(hub, [&](Process& process) {
    Gpu gpu(process, &nccl);
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    const Status ended = gpu.work(process);
    EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
    EXPECT_TRUE(contains(ended, "NCCL has failed on rank 1: ")) << ended.to_string();
    EXPECT_EQ(ended.blame().rank, 1);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 1});
    process.shutdown();
  });
}

// NCCL may notice the end of another rank first, and the coordinator names that one.
TEST(ElasticDeviceTest, AnErrorOfNcclAboutAnotherRankWaitsForTheCoordinator) {
  FakeNccl nccl;
  nccl.break_down(1, 6, net::nccl::Outcome::kRemoteError);
  Hub hub(2, 1, "2s");
  run(hub, [&](Process& process) {
    Gpu gpu(process, &nccl);
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    const TimePoint begin = std::chrono::steady_clock::now();
    const Status ended = gpu.work(process);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
    EXPECT_TRUE(contains(ended, "NCCL has failed on rank 1: ")) << ended.to_string();
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 1});
    process.shutdown();
  });
}

bool uses_nccl(Process& process) {
  const std::string stats = process.session().stats_json();
  const std::string key = "\"device.nccl_bytes\":";
  const auto at = stats.find(key);
  return at != std::string::npos && stats[at + key.size()] != '0';
}

// Sets have other numbers, communicators and ranks in each epoch.
TEST(ElasticDeviceTest, ProcessSetsGoOnOverNcclInTheNextEpoch) {
  FakeNccl nccl;
  Hub hub(4, 1);
  run(hub, [&](Process& process) {
    Gpu first(process, &nccl);
    ASSERT_EQ(process.init().to_string(), "ok");
    float total = 0;
    const Rank slot = process.slot();
    if (slot == 1 || slot == 2) {
      ASSERT_EQ(first.sum(process, {1, 2}, total).to_string(), "ok");
      EXPECT_EQ(total, 6);
    }
    if (slot >= 2) {
      ASSERT_EQ(first.sum(process, {2, 3}, total).to_string(), "ok");
      EXPECT_EQ(total, 12);
    }
    EXPECT_EQ(uses_nccl(process), slot != 0);
    hub.all.arrive_and_wait();
    if (slot == 2) {
      return process.die();
    }
    const Status lost = first.work(process);
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_EQ(lost.blame().rank, 2);
    Gpu second(process, &nccl);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 1, 3});
    if (slot != 0) {
      ASSERT_EQ(second.sum(process, {1, 2}, total).to_string(), "ok");
      EXPECT_EQ(total, 10) << "slots 1 and 3";
    }
    EXPECT_EQ(uses_nccl(process), slot != 0);
    expect_members(process, {0, 1, 3});  // rank 0 orders the operations of sets until all are done
    process.shutdown();
  });
}

}  // namespace
}  // namespace sirtaki::engine
