#include "runtime/device/arena.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/unit/device/fake_device.h"

namespace sirtaki::device {
namespace {

using testing::FakeDevice;

TEST(Arena, HandsOutBlocksWithoutAllocating) {
  FakeDevice device;
  {
    auto arena = Arena::create(device, Place::kDevice, 1000);
    ASSERT_TRUE(arena);
    device.seal();
    EXPECT_EQ((*arena)->free_bytes(), 1024U);
    Result<Block> first = (*arena)->take(1);
    Result<Block> second = (*arena)->take(512);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->bytes().size(), 1U);
    EXPECT_EQ(second->bytes().data() - first->bytes().data(), 256);
    EXPECT_EQ((*arena)->take(300).status().code(), Code::kExhausted);
    EXPECT_TRUE((*arena)->take(256));
  }
  EXPECT_EQ(device.alive(), 0);
}

TEST(Arena, JoinsHoles) {
  FakeDevice device;
  auto arena = Arena::create(device, Place::kPinned, 4 * 256);
  ASSERT_TRUE(arena);
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) {
    auto block = (*arena)->take(256);
    ASSERT_TRUE(block);
    blocks.push_back(std::move(*block));
  }
  EXPECT_FALSE((*arena)->take(0)) << "every block has an address of its own";
  for (const std::size_t i : {1U, 3U, 2U, 0U}) {
    const Block gone = std::move(blocks[i]);
  }
  EXPECT_TRUE((*arena)->take(4 * 256));
}

TEST(Arena, NeverHandsOutAPlaceTwice) {
  FakeDevice device;
  auto arena = Arena::create(device, Place::kPinned, 100 * 256);
  ASSERT_TRUE(arena);
  std::mt19937_64 random(5);
  std::vector<std::pair<Block, std::byte>> held;
  for (int turn = 0; turn < 3000; ++turn) {
    if (auto block = (*arena)->take(random() % 2000)) {
      const auto mark = static_cast<std::byte>(turn);
      std::fill(block->bytes().begin(), block->bytes().end(), mark);
      held.emplace_back(std::move(*block), mark);
    }
    if (held.size() > 1 && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      for (const std::byte byte : held.back().first.bytes()) {
        ASSERT_EQ(byte, held.back().second);
      }
      held.pop_back();
    }
  }
  held.clear();
  EXPECT_EQ((*arena)->free_bytes(), 100U * 256);
  EXPECT_TRUE((*arena)->take(100 * 256));
}

}  // namespace
}  // namespace sirtaki::device
