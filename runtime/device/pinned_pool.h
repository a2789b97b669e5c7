// PinnedPool: page-locked host memory in blocks that are kept for reuse.
//
// The pool allocates a block at first need, which may synchronize with the device. Use it only where no work on the
// device waits for another rank; otherwise allocate at start-up. Sizes are rounded up by at most a quarter above the
// smallest, so that tensors of similar sizes share blocks.
// Owner: the class that uses the blocks; the pool must outlive them. Not thread-safe. Return a block only when the
// device has finished with it, because the pool does not track pending device work.
// It is separate from the pools of other memory, because pinned memory is released through the device, and not at all
// after abandon().
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/device/device_api.h"

namespace sirtaki::device {

class PinnedPool;

// A block on loan; destruction returns it.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  PinnedBlock(PinnedPool* pool, std::byte* data, std::size_t size) : pool_(pool), bytes_(data, size) {}
  PinnedBlock(PinnedBlock&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
  PinnedBlock& operator=(PinnedBlock&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBlock();

  Bytes bytes() const { return bytes_; }

 private:
  PinnedPool* pool_ = nullptr;
  Bytes bytes_;
};

class PinnedPool {
 public:
  static constexpr std::size_t kSmallest = 4096;

  explicit PinnedPool(DeviceApi& device) : device_(device) {}
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();

  // Returns a block with undefined content; a block without memory for 0 bytes.
  Result<PinnedBlock> take(std::size_t bytes);
  // Leaks all memory from now on, even in the destructor: the device may still use it.
  void abandon() { abandoned_ = true; }
  // Bytes of all blocks, in use or kept.
  std::size_t held_bytes() const { return held_bytes_; }
  // Returns the memory that a block of `bytes` bytes takes.
  static std::size_t rounded(std::size_t bytes);

 private:
  friend class PinnedBlock;
  void give_back(Bytes bytes);

  DeviceApi& device_;
  std::map<std::size_t, std::vector<std::byte*>> kept_;  // key: rounded size
  std::size_t held_bytes_ = 0;
  bool abandoned_ = false;
};

}  // namespace sirtaki::device
