// Calls of NCCL that wait for the device, on threads.
#include "runtime/net/device/nccl/teardown.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>

#include "tests/conformance/collectives_worlds.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/ids.h"

namespace sirtaki::net::nccl {
namespace {

using net::testing::wait_until;

// Calls that wait until the test opens the gate. NCCL's functions carry no context.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  std::set<CommHandle> entered;
  std::set<CommHandle> left;
};
Gate gate;

Outcome wait_at_the_gate(CommHandle comm) {
  std::unique_lock lock(gate.mutex);
  gate.entered.insert(comm);
  gate.changed.wait(lock, [] { return gate.open; });
  gate.left.insert(comm);
  return Outcome::kSuccess;
}

std::size_t count(const std::set<CommHandle>& comms) {
  const std::lock_guard lock(gate.mutex);
  return comms.size();
}

class TeardownTest : public ::testing::Test {
 protected:
  TeardownTest() {
    const std::lock_guard lock(gate.mutex);
    gate.open = false;
    gate.entered.clear();
    gate.left.clear();
  }
  static void open() {
    const std::lock_guard lock(gate.mutex);
    gate.open = true;
    gate.changed.notify_all();
  }
  static CommHandle comm(std::uintptr_t number) { return reinterpret_cast<CommHandle>(number); }

  std::vector<std::string> lines_;
  Logger log_{LoggerOptions{}, std::make_unique<testing::Lines>(lines_)};
};

TEST_F(TeardownTest, CallsRunSideBySide) {
  device::testing::FakeDevice device;
  const auto seen = device.watch();
  ThreadTeardown teardown(device, log_, std::chrono::minutes(1));
  EXPECT_TRUE(teardown.done());
  teardown.start(wait_at_the_gate, comm(1), nullptr);
  teardown.start(wait_at_the_gate, comm(2), nullptr);
  EXPECT_TRUE(wait_until([] { return count(gate.entered) == 2; })) << "one waits for the other";
  EXPECT_FALSE(teardown.done());
  open();
  EXPECT_TRUE(wait_until([&] { return teardown.done(); }));
  EXPECT_EQ(count(gate.left), 2U);
  EXPECT_TRUE(seen->breaches.empty());
}

TEST_F(TeardownTest, TheEndWaitsForCallsInTime) {
  device::testing::FakeDevice device;
  {
    ThreadTeardown teardown(device, log_, std::chrono::minutes(1));
    teardown.start(wait_at_the_gate, comm(1), nullptr);
    open();
  }
  EXPECT_EQ(count(gate.left), 1U);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(TeardownTest, ALateCallUsesNothingThatIsGone) {
  std::weak_ptr<CommHandle> kept;
  {
    device::testing::FakeDevice device;
    ThreadTeardown teardown(device, log_, std::chrono::milliseconds(1));
    teardown.start(wait_at_the_gate, comm(1), std::make_shared<CommHandle>(comm(1)));
    auto owned = std::make_shared<CommHandle>(comm(2));
    kept = owned;
    teardown.start(wait_at_the_gate, comm(2), std::move(owned));
    EXPECT_TRUE(wait_until([] { return count(gate.entered) == 2; }));
  }
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_NE(lines_[0].find("NCCL has not ended a communicator in 1 ms"), std::string::npos) << lines_[0];
  EXPECT_FALSE(kept.expired()) << "NCCL may still write to it";
  open();
  EXPECT_TRUE(wait_until([] { return count(gate.left) == 2; }));
  EXPECT_TRUE(wait_until([&] { return kept.expired(); }));
}

}  // namespace
}  // namespace sirtaki::net::nccl
