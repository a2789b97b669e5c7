#include "runtime/engine/common/buffer_pool.h"

#include <gtest/gtest.h>

namespace sirtaki::engine {
namespace {

TEST(BufferPool, ReusesReturnedBuffers) {
  Stats stats;
  Gauge& allocated = stats.gauge("bytes");
  BufferPool pool(1 << 20, allocated);
  const std::byte* first = nullptr;
  {
    BufferPool::Buffer buffer = pool.take(5000);
    EXPECT_EQ(buffer.bytes().size(), 5000U);
    first = buffer.bytes().data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
  }
  EXPECT_EQ(pool.take(8000).bytes().data(), first) << "the same size class";
  EXPECT_EQ(allocated.value(), 8192);
}

TEST(BufferPool, KeepsNoMoreThanTheLimit) {
  Stats stats;
  Gauge& allocated = stats.gauge("bytes");
  {
    BufferPool pool(10000, allocated);
    { const BufferPool::Buffer big = pool.take(100000); }
    EXPECT_EQ(allocated.value(), 0);
    { const BufferPool::Buffer small = pool.take(4096); }
    EXPECT_EQ(allocated.value(), 4096);
  }
  EXPECT_EQ(allocated.value(), 0);
}

TEST(BufferPool, MovedBuffersComeBackOnce) {
  Stats stats;
  BufferPool pool(1 << 20, stats.gauge("bytes"));
  BufferPool::Buffer a = pool.take(100);
  BufferPool::Buffer b = std::move(a);
  a = pool.take(100);
  EXPECT_NE(a.bytes().data(), b.bytes().data());
  a = std::move(b);
  const BufferPool::Buffer c = pool.take(100);
  const BufferPool::Buffer d = pool.take(100);
  EXPECT_NE(c.bytes().data(), d.bytes().data());
}

}  // namespace
}  // namespace sirtaki::engine
