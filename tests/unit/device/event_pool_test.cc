#include "runtime/device/event_pool.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/unit/device/fake_device.h"

namespace sirtaki::device {
namespace {

using testing::FakeDevice;

TEST(EventPool, ReusesEventsMadeAtStartUp) {
  FakeDevice device;
  {
    auto pool = EventPool::create(device, 2);
    ASSERT_TRUE(pool);
    device.seal();
    Result<PooledEvent> first = (*pool)->take();
    ASSERT_TRUE(first);
    const Event event = first->get();
    {
      Result<PooledEvent> second = (*pool)->take();
      ASSERT_TRUE(second);
      EXPECT_NE(second->get(), event);
      EXPECT_EQ((*pool)->take().status().code(), Code::kExhausted);
    }
    EXPECT_EQ((*pool)->left(), 1U);
    const PooledEvent moved = std::move(*first);
    EXPECT_EQ(moved.get(), event);
    EXPECT_FALSE(*first);
  }
  EXPECT_EQ(device.alive(), 0);
}

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

}  // namespace
}  // namespace sirtaki::device
