// BufferPool: staging memory that is used again, so that a steady state allocates nothing.
//
// Loop thread; owned by Engine. Buffers come in size classes of powers of two, aligned to 64 bytes; those given back
// are kept up to `keep_bytes` and counted.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/telemetry/stats.h"
#include "runtime/base/types.h"
#include "runtime/net/collectives/collectives.h"

namespace sirtaki::engine {

class BufferPool {
 public:
  // Owns memory until it goes back to its pool; the pool outlives it.
  class Buffer {
   public:
    Buffer() = default;
    // Of no pool.
    explicit Buffer(net::SharedBuffer shared) : shared_(std::move(shared)) {}
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    Bytes bytes() const { return shared_.keeps ? shared_.memory : Bytes(data_.get(), size_); }

   private:
    friend class BufferPool;
    struct Free {
      void operator()(std::byte* data) const;
    };
    void give_back();
    BufferPool* pool_ = nullptr;
    std::unique_ptr<std::byte, Free> data_;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
    net::SharedBuffer shared_;
  };

  BufferPool(std::size_t keep_bytes, Gauge& allocated) : keep_bytes_(keep_bytes), allocated_(allocated) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  Buffer take(std::size_t size);

 private:
  using Memory = std::unique_ptr<std::byte, Buffer::Free>;
  void put(Memory memory, std::size_t capacity);

  const std::size_t keep_bytes_;
  Gauge& allocated_;  // bytes in use or kept
  std::size_t kept_ = 0;
  std::map<std::size_t, std::vector<Memory>> free_;  // by capacity
};

}  // namespace sirtaki::engine
