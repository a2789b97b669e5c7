// PinnedPool: memory of the host that copies of a device reach directly, lent in blocks and kept for the next.
//
// Blocks are made when they are first needed, which may wait for the device: for who never has work on the device that
// waits for another rank. Others make theirs at the start (arena.h). Sizes are rounded up, by a quarter at most beyond
// the smallest, so that tensors of similar sizes share blocks.
// Owned by: whoever works with the blocks. Threads: one. It outlives its blocks. A block may be given back when the
// device is done with it; the pool does not know when that is.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/device/device_api.h"

namespace sirtaki::device {

class PinnedPool;

// Goes back when it is destroyed.
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

  // What it held before is in it. Of 0 bytes: one without memory.
  Result<PinnedBlock> take(std::size_t bytes);
  // Nothing is released any more, not even at the end: nobody knows when the device is done with it.
  void abandon() { abandoned_ = true; }
  // SharedBuffer and kept.
  std::size_t held_bytes() const { return held_bytes_; }
  // What a block of so many bytes takes.
  static std::size_t rounded(std::size_t bytes);

 private:
  friend class PinnedBlock;
  void give_back(Bytes bytes);

  DeviceApi& device_;
  std::map<std::size_t, std::vector<std::byte*>> kept_;  // by rounded size
  std::size_t held_bytes_ = 0;
  bool abandoned_ = false;
};

}  // namespace sirtaki::device
