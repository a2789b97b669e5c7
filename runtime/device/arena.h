// Arena: a fixed amount of device or pinned host memory, allocated once at start-up and handed out in blocks.
//
// Allocating or freeing later could make CUDA synchronize with the device while a collective waits there for a peer.
// Owner: the class that uses the blocks; the arena must outlive them. Not thread-safe. Return a block only when the
// device has finished with it; the arena does not track pending device work.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "runtime/base/types.h"
#include "runtime/device/device_api.h"

namespace sirtaki::device {

class Arena;

// A block of an Arena; destruction returns it.
class Block {
 public:
  Block() = default;
  Block(Arena* arena, Bytes bytes) : arena_(arena), bytes_(bytes) {}
  Block(Block&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Block();

  // The requested size; the address is a multiple of Arena::kAlignment.
  Bytes bytes() const { return bytes_; }

 private:
  Arena* arena_ = nullptr;
  Bytes bytes_;
};

class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  static Result<std::unique_ptr<Arena>> create(DeviceApi& device, Place place, std::size_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Returns a block from the first hole that fits, so that equal sequences of calls give equal addresses. kExhausted
  // if no hole is large enough.
  Result<Block> take(std::size_t bytes);
  std::size_t free_bytes() const;

 private:
  friend class Block;
  Arena(DeviceApi& device, Place place) : device_(device), place_(place) {}
  void give_back(Bytes bytes);

  DeviceApi& device_;
  const Place place_;
  std::byte* data_ = nullptr;
  std::map<std::size_t, std::size_t> holes_;  // offset -> size; neighbours are merged
};

}  // namespace sirtaki::device
