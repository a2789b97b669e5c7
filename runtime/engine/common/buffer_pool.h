// BufferPool: host memory for staging that is reused, so that steady state allocates nothing.
//
// Owner: Engine. Thread: loop. Buffers come in size classes of powers of two, aligned to 64 bytes; returned buffers are
// kept up to `keep_bytes`, and a gauge counts all of them.
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
  // Memory on loan; destruction returns it to its pool, which must outlive the buffer.
  class Buffer {
   public:
    Buffer() = default;
    // Wraps memory that belongs to no pool.
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

  // Returns a buffer of `size` bytes with undefined content.
  Buffer take(std::size_t size);

 private:
  using Memory = std::unique_ptr<std::byte, Buffer::Free>;
  void put(Memory memory, std::size_t capacity);

  const std::size_t keep_bytes_;
  Gauge& allocated_;  // bytes of all buffers, in use or kept
  std::size_t kept_ = 0;
  std::map<std::size_t, std::vector<Memory>> free_;  // key: capacity
};

}  // namespace sirtaki::engine
