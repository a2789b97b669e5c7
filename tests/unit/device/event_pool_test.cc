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

}  // namespace
}  // namespace sirtaki::device
