#include "runtime/net/collectives/staging.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sirtaki::net {
namespace {

constexpr std::size_t kSmallest = 4096;

}  // namespace

struct Staging::Shelf {
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity;
  };
  std::vector<Block> blocks;
  std::size_t kept = 0;
  std::size_t limit = 0;
};

Staging::Staging(std::weak_ptr<Shelf> shelf, std::unique_ptr<std::byte[]> memory, std::size_t capacity)
    : shelf_(std::move(shelf)), memory_(std::move(memory)), capacity_(capacity) {}

Staging::Staging(Staging&& other) noexcept
    : shelf_(std::move(other.shelf_)),
      memory_(std::move(other.memory_)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Staging& Staging::operator=(Staging&& other) noexcept {
  if (this != &other) {
    give_back();
    shelf_ = std::move(other.shelf_);
    memory_ = std::move(other.memory_);
    capacity_ = std::exchange(other.capacity_, 0);
  }
  return *this;
}

Staging::~Staging() {
  give_back();
}

void Staging::give_back() {
  const auto shelf = shelf_.lock();
  if (memory_ != nullptr && shelf && shelf->kept + capacity_ <= shelf->limit) {
    shelf->kept += capacity_;
    shelf->blocks.push_back({std::move(memory_), capacity_});
  }
  memory_.reset();
  capacity_ = 0;
}

StagingPool::StagingPool(std::size_t keep_bytes) : shelf_(std::make_shared<Staging::Shelf>()) {
  shelf_->limit = keep_bytes;
}

Staging StagingPool::take(std::size_t bytes) {
  // Sizes are powers of two, so that blocks can be reused.
  const std::size_t capacity = std::bit_ceil(std::max(bytes, kSmallest));
  auto& blocks = shelf_->blocks;
  const auto found =
      std::find_if(blocks.rbegin(), blocks.rend(), [&](const auto& block) { return block.capacity == capacity; });
  if (found != blocks.rend()) {
    Staging staging(shelf_, std::move(found->memory), capacity);
    shelf_->kept -= capacity;
    blocks.erase(std::next(found).base());
    return staging;
  }
  return Staging(shelf_, std::make_unique_for_overwrite<std::byte[]>(capacity), capacity);
}

}  // namespace sirtaki::net
