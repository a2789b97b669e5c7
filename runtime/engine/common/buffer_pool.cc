#include "runtime/engine/common/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace sirtaki::engine {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallest = 4096;

}  // namespace

void BufferPool::Buffer::Free::operator()(std::byte* data) const {
  std::free(data);
}

BufferPool::Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::move(other.data_)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)),
      shared_(std::exchange(other.shared_, {})) {}

BufferPool::Buffer& BufferPool::Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    shared_ = std::exchange(other.shared_, {});
  }
  return *this;
}

BufferPool::Buffer::~Buffer() {
  give_back();
}

void BufferPool::Buffer::give_back() {
  if (pool_ != nullptr && data_) {
    pool_->put(std::move(data_), capacity_);
  }
  pool_ = nullptr;
}

BufferPool::~BufferPool() {
  allocated_.add(-static_cast<std::int64_t>(kept_));
}

BufferPool::Buffer BufferPool::take(std::size_t size) {
  Buffer buffer;
  buffer.pool_ = this;
  buffer.size_ = size;
  buffer.capacity_ = std::bit_ceil(std::max(size, kSmallest));
  if (auto& kept = free_[buffer.capacity_]; !kept.empty()) {
    buffer.data_ = std::move(kept.back());
    kept.pop_back();
    kept_ -= buffer.capacity_;
    return buffer;
  }
  buffer.data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, buffer.capacity_)));
  if (!buffer.data_) {
    throw std::bad_alloc();
  }
  allocated_.add(static_cast<std::int64_t>(buffer.capacity_));
  return buffer;
}

void BufferPool::put(Memory memory, std::size_t capacity) {
  if (kept_ + capacity > keep_bytes_) {
    allocated_.add(-static_cast<std::int64_t>(capacity));
    return;
  }
  kept_ += capacity;
  free_[capacity].push_back(std::move(memory));
}

}  // namespace sirtaki::engine
