// Arena: memory of a device, or pinned memory of the host, allocated once at the start and lent in blocks.
//
// Owned by: whoever works with the blocks. Threads: one. It outlives its blocks. A block may be given back when the
// device is done with it; the arena does not know when that is.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "runtime/base/types.h"
#include "runtime/device/device_api.h"

namespace sirtaki::device {

class Arena;

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

  // Begins at a multiple of Arena::kAlignment.
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

  // The first hole in which it fits, so that equal calls give equal places. kExhausted where there is none.
  Result<Block> take(std::size_t bytes);
  std::size_t free_bytes() const;

 private:
  friend class Block;
  Arena(DeviceApi& device, Place place) : device_(device), place_(place) {}
  void give_back(Bytes bytes);

  DeviceApi& device_;
  const Place place_;
  std::byte* data_ = nullptr;
  std::map<std::size_t, std::size_t> holes_;  // where they begin -> bytes; none touches another
};

}  // namespace sirtaki::device
