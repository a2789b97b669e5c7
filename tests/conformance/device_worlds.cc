#include "tests/conformance/device_worlds.h"

#include <stdexcept>
#include <utility>

#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/net/device/ordered_device.h"
#include "runtime/net/link/inproc_link.h"
#include "tests/conformance/fake_nccl.h"
#include "tests/conformance/loopback.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/ids.h"

namespace sirtaki::net::testing {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result) {
    throw std::runtime_error(result.status().to_string());
  }
  return std::move(*result);
}

LoggerOptions silent() {
  LoggerOptions options;
  options.level = LogLevel::kOff;
  return options;
}

// A world of one loop, without other connections.
template <class Member>
class DeviceWorld : public World {
 public:
  int size() const override { return static_cast<int>(ranks_.size()); }
  Collectives& at(Rank rank) override { return *ranks_[static_cast<std::size_t>(rank)]; }
  PointToPoint& link(Rank) override { throw std::logic_error("a world without links"); }
  void on(Rank, Task task) override { loop_.post(std::move(task)); }
  bool wait(const std::function<bool()>& done) override { return loop_.run(done); }

 protected:
  // Each is slow, so that the ranks arrive one after the other.
  device::testing::FakeDevice& make_device() {
    devices_.push_back(std::make_unique<device::testing::FakeDevice>());
    devices_.back()->be_slow();
    return *devices_.back();
  }
  void seal() {
    for (const auto& device : devices_) {
      device->seal();
    }
  }

  ManualLoop loop_;
  std::vector<std::unique_ptr<device::testing::FakeDevice>> devices_;
  std::vector<std::unique_ptr<Member>> ranks_;
};

class LoopbackWorld final : public DeviceWorld<LoopbackCollectives> {
 public:
  explicit LoopbackWorld(int size) : group_(must(LoopbackGroup::create(make_device(), size))) {
    seal();
    for (Rank rank = 0; rank < size; ++rank) {
      ranks_.push_back(group_->member(rank, loop_));
    }
  }

 private:
  std::shared_ptr<LoopbackGroup> group_;
};

nccl::NcclOptions nccl_options(int size) {
  nccl::NcclOptions options;
  options.size = size;
  options.credit_bytes = 20000;
  options.timeout = std::chrono::seconds(60);
  return options;
}

class NcclWorld final : public DeviceWorld<nccl::NcclCollectives> {
 public:
  explicit NcclWorld(int size) {
    nccl::NcclOptions options = nccl_options(size);
    int connected = 0;
    for (options.rank = 0; options.rank < size; ++options.rank) {
      ranks_.push_back(must(nccl::NcclCollectives::create({loop_, nccl_.api(), make_device(), ids_, log_}, options)));
      ranks_.back()->connect_set(kJobSet, [&](Status status) { connected += status.ok() ? 1 : 0; });
    }
    seal();
    if (!loop_.run([&] { return connected == size; })) {
      throw std::runtime_error("the ranks did not connect");
    }
  }
  ~NcclWorld() override { ranks_.clear(); }

 private:
  FakeNccl nccl_;
  nccl::testing::LocalIds ids_{loop_};
  Logger log_{silent(), stderr_sink()};
};

// NCCL again, with an order of its own on each rank.
class OrderedWorld final : public DeviceWorld<OrderedDevice> {
 public:
  explicit OrderedWorld(int size) : links_(InprocGroup::create(size)) {
    nccl::NcclOptions options = nccl_options(size);
    std::vector<std::unique_ptr<nccl::NcclCollectives>> inner;
    int connected = 0;
    for (options.rank = 0; options.rank < size; ++options.rank) {
      inner.push_back(must(nccl::NcclCollectives::create({loop_, nccl_.api(), make_device(), ids_, log_}, options)));
      inner.back()->connect_set(kJobSet, [&](Status status) { connected += status.ok() ? 1 : 0; });
    }
    seal();
    if (!loop_.run([&] { return connected == size; })) {
      throw std::runtime_error("the ranks did not connect");
    }
    constexpr OpTag kTag(~std::uint64_t{0});
    for (Rank rank = 0; rank < size; ++rank) {
      endpoints_.push_back(links_->endpoint(rank, loop_));
      if (rank == 0) {
        server_ = std::make_unique<LaunchServer>(*endpoints_.back(), LaunchServerOptions{kTag}, [](const Status&) {});
      }
      ranks_.push_back(
          std::make_unique<OrderedDevice>(*endpoints_.back(), std::move(inner[static_cast<std::size_t>(rank)]),
                                          rank == 0 ? server_.get() : nullptr, kTag, [](const Status&) {}));
    }
  }
  ~OrderedWorld() override { ranks_.clear(); }

 private:
  std::shared_ptr<InprocGroup> links_;
  std::vector<std::unique_ptr<InprocEndpoint>> endpoints_;
  std::unique_ptr<LaunchServer> server_;
  FakeNccl nccl_;
  nccl::testing::LocalIds ids_{loop_};
  Logger log_{silent(), stderr_sink()};
};

}  // namespace

std::vector<std::string> device_worlds() {
  return {"loopback", "nccl", "ordered"};
}

std::unique_ptr<World> make_device_world(const std::string& name, int size) {
  if (name == "nccl") {
    return std::make_unique<NcclWorld>(size);
  }
  if (name == "ordered") {
    return std::make_unique<OrderedWorld>(size);
  }
  return std::make_unique<LoopbackWorld>(size);
}

}  // namespace sirtaki::net::testing
