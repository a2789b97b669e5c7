// Reuse of blocks of device memory; the device of the tests refuses a second release.
#include "runtime/engine/device/device_memory.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/unit/device/fake_device.h"

namespace sirtaki::engine {
namespace {

class DeviceMemoryTest : public testing::Test {
 protected:
  int calls() const { return device_.device_memory_calls(); }

  device::testing::FakeDevice device_;
  DeviceMemory memory_{device_};
};

TEST_F(DeviceMemoryTest, ReturnedBlocksOfOperationsAreNotForStreams) {
  const std::byte* const reserved = memory_.take(1000)->get();
  const auto kept = memory_.keep(1000);
  ASSERT_TRUE(kept);
  EXPECT_NE(kept->get(), reserved);
  const int before = calls();
  EXPECT_EQ(memory_.take(900)->get(), reserved);
  EXPECT_EQ(calls(), before);
}

TEST_F(DeviceMemoryTest, WithoutMemoryLeftBlocksOfTheOtherKindServe) {
  const std::byte* const returned = memory_.keep(1000)->get();
  device_.limit_memory(1000, 950);
  EXPECT_EQ(memory_.take(1001).status().code(), Code::kExhausted);
  EXPECT_EQ(memory_.take_refusal(), 1001U);
  auto block = memory_.take(1000);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->get(), returned);
  EXPECT_FALSE(memory_.take_refusal());
  block->reset();
  EXPECT_EQ(memory_.keep(1000)->get(), returned) << "it stays what it was made for";
}

TEST_F(DeviceMemoryTest, SpareBlocksAreReleasedOnceOrPutBack) {
  auto used = memory_.take(100);
  ASSERT_TRUE(used);
  ASSERT_TRUE(memory_.take(200));
  ASSERT_TRUE(memory_.keep(300));
  DeviceMemory::Spare spare = memory_.take_spare();
  EXPECT_TRUE(memory_.take_spare().empty());
  memory_.put_back(std::move(spare));
  const int before = calls();
  memory_.release(memory_.take_spare());
  EXPECT_EQ(calls(), before + 2);
  memory_.close(true);
  EXPECT_EQ(calls(), before + 3) << "the used block is released, too";
}

TEST_F(DeviceMemoryTest, BlocksThatAreDroppedAfterTheEndAreForgotten) {
  auto late = memory_.keep(100);
  ASSERT_TRUE(late);
  memory_.close(true);
  const int before = calls();
  late->reset();
  EXPECT_TRUE(memory_.take_spare().empty());
  EXPECT_EQ(calls(), before);
}

}  // namespace
}  // namespace sirtaki::engine
