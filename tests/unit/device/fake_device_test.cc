// Each model of FakeDevice fails a program with the fault that it is for.
#include "tests/unit/device/fake_device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <vector>

namespace sirtaki::device {
namespace {

// Returns whether the kernel of the system can read this byte now.
bool readable(const std::byte* data) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const bool read = write(ends[1], data, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return read;
}

using std::chrono::milliseconds;
using testing::FakeDevice;

TEST(FakeDevice, KeepsTheOrderOfStreamsAndEvents) {
  FakeDevice device;
  const Stream one = *device.make_stream(Priority::kHigh);
  const Stream two = *device.make_stream(Priority::kNormal);
  const Event event = *device.make_event();
  EXPECT_TRUE(*device.done(event)) << "never recorded";
  device.hold();
  std::byte from{7};
  std::byte middle{0};
  std::byte to{0};
  ASSERT_TRUE(device.copy(one, &middle, &from, 1).ok());
  ASSERT_TRUE(device.record(event, one).ok());
  ASSERT_TRUE(device.wait(two, event).ok());
  ASSERT_TRUE(device.copy(two, &to, &middle, 1).ok());
  EXPECT_FALSE(device.step(two));
  EXPECT_TRUE(device.step(one));
  EXPECT_FALSE(*device.done(event));
  EXPECT_FALSE(device.step(two));
  device.run();
  EXPECT_TRUE(*device.done(event));
  EXPECT_EQ(to, from);
}

TEST(FakeDevice, AWaitIsBoundToItsRecord) {
  FakeDevice device;
  const Stream one = *device.make_stream(Priority::kNormal);
  const Stream two = *device.make_stream(Priority::kNormal);
  const Event event = *device.make_event();
  device.hold();
  ASSERT_TRUE(device.wait(two, event).ok());
  EXPECT_TRUE(device.step(two)) << "there was no record to wait for";
  ASSERT_TRUE(device.record(event, one).ok());
  ASSERT_TRUE(device.wait(two, event).ok());
  FakeDevice::queue(one.native, [] {});
  ASSERT_TRUE(device.record(event, one).ok());
  EXPECT_FALSE(device.step(two));
  EXPECT_TRUE(device.step(one));
  EXPECT_TRUE(device.step(two)) << "the record of the wait has passed";
  EXPECT_FALSE(*device.done(event)) << "but not the last one";
  device.run();
  EXPECT_TRUE(*device.done(event));
}

TEST(FakeDevice, AnEventBehindAllWorkWaitsForEachStream) {
  FakeDevice device;
  const Stream one = *device.make_stream(Priority::kNormal);
  const Stream two = *device.make_stream(Priority::kNormal);
  const Event event = *device.make_event();
  device.be_slow();
  bool ready = false;
  FakeDevice::queue(one.native, [] {});
  FakeDevice::queue(
      two.native, [] {}, [&] { return ready; });
  ASSERT_TRUE(device.record_all(event).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(*device.done(event)) << "the second stream hangs";
  }
  ready = true;
  FakeDevice::queue(
      one.native, [] {}, [] { return false; });
  EXPECT_TRUE(*device.done(event) || *device.done(event)) << "later work does not matter";
}

TEST(FakeDevice, WorkTakesItsTime) {
  FakeDevice device;
  TimePoint now;
  const Stream one = *device.make_stream(Priority::kNormal);
  const Stream two = *device.make_stream(Priority::kNormal);
  const Event event = *device.make_event();
  device.keep_time([&] { return now; }, milliseconds(5));
  std::vector<int> ended;
  FakeDevice::occupy(one, milliseconds(10), [&] { ended.push_back(1); });
  ASSERT_TRUE(device.record(event, one).ok());
  ASSERT_TRUE(device.wait(two, event).ok());
  std::byte from{7};
  std::byte to{0};
  ASSERT_TRUE(device.copy(two, &to, &from, 1).ok());
  FakeDevice::occupy(two, milliseconds(1), [&] { ended.push_back(2); });
  now += milliseconds(9);
  EXPECT_FALSE(*device.done(event));
  now += milliseconds(1);
  EXPECT_TRUE(*device.done(event));
  EXPECT_EQ(ended, std::vector{1});
  EXPECT_EQ(to, std::byte{0}) << "the copy has begun";
  now += milliseconds(5);
  EXPECT_TRUE(*device.done(event));
  EXPECT_EQ(to, from);
  EXPECT_EQ(ended, std::vector{1});
  now += milliseconds(20);
  FakeDevice::occupy(two, milliseconds(3), [&] { ended.push_back(3); });
  EXPECT_EQ(ended, (std::vector{1, 2}));
  now += milliseconds(2);
  EXPECT_TRUE(*device.done(event));
  EXPECT_EQ(ended, (std::vector{1, 2})) << "it began when it was queued";
  now += milliseconds(1);
  EXPECT_TRUE(*device.done(event));
  EXPECT_EQ(ended, (std::vector{1, 2, 3}));
}

TEST(FakeDevice, AllocatingAndReleasingRunTheDeviceIdle) {
  FakeDevice device;
  TimePoint now;
  const Stream stream = *device.make_stream(Priority::kNormal);
  device.keep_time([&] { return now; });
  bool ended = false;
  const auto occupy = [&] {
    ended = false;
    FakeDevice::occupy(stream, milliseconds(10), [&] { ended = true; });
  };
  occupy();
  std::byte* const memory = *device.allocate(Place::kPinned, 10);
  EXPECT_TRUE(ended);
  occupy();
  EXPECT_FALSE(ended);
  device.release(Place::kPinned, memory);
  EXPECT_TRUE(ended);
  EXPECT_EQ(device.memory_calls(), 2);
}

TEST(FakeDevice, AFrameworkHoldsMostOfTheMemory) {
  FakeDevice device;
  device.limit_memory(1000, 950);
  EXPECT_EQ(device.allocate(Place::kDevice, 51).status().code(), Code::kExhausted);
  const auto memory = device.allocate(Place::kDevice, 50);
  ASSERT_TRUE(memory);
  EXPECT_EQ(device.allocate(Place::kDevice, 1).status().code(), Code::kExhausted);
  EXPECT_TRUE(device.allocate(Place::kPinned, 100)) << "memory of the host";
  device.release(Place::kDevice, *memory);
  EXPECT_TRUE(device.allocate(Place::kDevice, 50));
}

TEST(FakeDevice, OnlyItsWorkReachesItsMemory) {
  FakeDevice device;
  const Stream stream = *device.make_stream(Priority::kNormal);
  std::byte* const there = *device.allocate(Place::kDevice, 10);
  std::byte* const pinned = *device.allocate(Place::kPinned, 10);
  EXPECT_TRUE(readable(pinned));
  EXPECT_EQ(readable(there), !testing::GuardedMemory::kGuards);
  bool in_work = false;
  FakeDevice::queue(stream.native, [&] { in_work = readable(there); });
  EXPECT_TRUE(in_work);
  EXPECT_EQ(readable(there), !testing::GuardedMemory::kGuards);
  device.release(Place::kDevice, there);
  device.release(Place::kPinned, pinned);
}

TEST(FakeDevice, MemoryThatIsNotWrittenOrGivenBackHoldsNaN) {
  FakeDevice device;
  const Stream stream = *device.make_stream(Priority::kNormal);
  std::byte* const there = *device.allocate(Place::kDevice, sizeof(float));
  float here = 1;
  auto* const to = reinterpret_cast<std::byte*>(&here);
  ASSERT_TRUE(device.copy(stream, to, there, sizeof here).ok());
  EXPECT_TRUE(std::isnan(here)) << "read before it is written";
  here = 2;
  ASSERT_TRUE(device.copy(stream, there, to, sizeof here).ok());
  here = 0;
  device.hold();
  ASSERT_TRUE(device.copy(stream, to, there, sizeof here).ok());
  device.release(Place::kDevice, there);
  device.run();
  EXPECT_TRUE(std::isnan(here)) << "released before it is read";
}

}  // namespace
}  // namespace sirtaki::device
