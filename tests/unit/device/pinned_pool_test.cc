#include "runtime/device/pinned_pool.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/unit/device/fake_device.h"

namespace sirtaki::device {
namespace {

using testing::FakeDevice;

TEST(PinnedPool, ReusesABlock) {
  FakeDevice device;
  {
    PinnedPool pool(device);
    const std::byte* first = nullptr;
    {
      Result<PinnedBlock> block = pool.take(5000);
      ASSERT_TRUE(block);
      EXPECT_EQ(block->bytes().size(), 5000U);
      first = block->bytes().data();
      const Result<PinnedBlock> other = pool.take(5000);
      ASSERT_TRUE(other);
      EXPECT_NE(other->bytes().data(), first);
      const PinnedBlock moved = std::move(*block);
      EXPECT_EQ(moved.bytes().data(), first);
    }
    EXPECT_EQ(device.alive(), 2);
    device.seal();
    const Result<PinnedBlock> again = pool.take(4500);
    ASSERT_TRUE(again) << "as large when rounded";
    EXPECT_TRUE(again->bytes().data() != nullptr);
    EXPECT_EQ(pool.held_bytes(), 2 * PinnedPool::rounded(5000));
  }
  EXPECT_EQ(device.alive(), 0);
}

TEST(PinnedPool, NoBytesTakeNoMemory) {
  FakeDevice device;
  PinnedPool pool(device);
  device.seal();
  const Result<PinnedBlock> none = pool.take(0);
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->bytes().empty());
  EXPECT_EQ(pool.held_bytes(), 0U);
}

TEST(PinnedPool, AbandonedMemoryIsNotReleased) {
  FakeDevice device;
  {
    PinnedPool pool(device);
    ASSERT_TRUE(pool.take(10));
    pool.abandon();
  }
  EXPECT_EQ(device.alive(), 1);
}

TEST(PinnedPool, RoundsByAQuarterAtMost) {
  EXPECT_EQ(PinnedPool::rounded(1), PinnedPool::kSmallest);
  EXPECT_EQ(PinnedPool::rounded(4096), 4096U);
  EXPECT_EQ(PinnedPool::rounded(4097), 5120U);
  for (std::size_t bytes = 4097; bytes < 300000; bytes += 97) {
    const std::size_t rounded = PinnedPool::rounded(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded - bytes, bytes / 4 + 1) << bytes;
    EXPECT_EQ(PinnedPool::rounded(rounded), rounded);
  }
}

}  // namespace
}  // namespace sirtaki::device
