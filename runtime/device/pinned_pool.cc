#include "runtime/device/pinned_pool.h"

#include <algorithm>
#include <bit>

namespace sirtaki::device {

PinnedBlock::~PinnedBlock() {
  if (pool_ != nullptr && !bytes_.empty()) {
    pool_->give_back(bytes_);
  }
}

PinnedPool::~PinnedPool() {
  if (abandoned_) {
    return;
  }
  for (const auto& [size, blocks] : kept_) {
    for (std::byte* const block : blocks) {
      device_.release(Place::kPinned, block);
    }
  }
}

std::size_t PinnedPool::rounded(std::size_t bytes) {
  if (bytes <= kSmallest) {
    return kSmallest;
  }
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

Result<PinnedBlock> PinnedPool::take(std::size_t bytes) {
  if (bytes == 0) {
    return PinnedBlock();
  }
  const std::size_t size = rounded(bytes);
  std::vector<std::byte*>& kept = kept_[size];
  if (kept.empty()) {
    SRT_ASSIGN(std::byte* const made, device_.allocate(Place::kPinned, size));
    held_bytes_ += size;
    return PinnedBlock(this, made, bytes);
  }
  PinnedBlock block(this, kept.back(), bytes);
  kept.pop_back();
  return block;
}

void PinnedPool::give_back(Bytes bytes) {
  kept_[rounded(bytes.size())].push_back(bytes.data());
}

}  // namespace sirtaki::device
