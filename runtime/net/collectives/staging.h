// StagingPool: scratch memory for data that arrives before it can be reduced; reused between operations.
// Owned by a collectives backend and used on its loop. A Staging may outlive its pool.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::net {

class StagingPool;

// A block of scratch memory, returned to the pool by the destructor.
class Staging {
 public:
  Staging() = default;
  Staging(Staging&& other) noexcept;
  Staging& operator=(Staging&& other) noexcept;
  ~Staging();

  std::byte* data() const { return memory_.get(); }
  std::size_t capacity() const { return capacity_; }

 private:
  friend class StagingPool;
  struct Shelf;
  Staging(std::weak_ptr<Shelf> shelf, std::unique_ptr<std::byte[]> memory, std::size_t capacity);
  void give_back();

  std::weak_ptr<Shelf> shelf_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

class StagingPool {
 public:
  // Keeps at most `keep_bytes` of unused memory.
  explicit StagingPool(std::size_t keep_bytes);

  // Returns at least `bytes` of memory with undefined content.
  Staging take(std::size_t bytes);

 private:
  std::shared_ptr<Staging::Shelf> shelf_;
};

}  // namespace sirtaki::net
