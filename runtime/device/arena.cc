#include "runtime/device/arena.h"

#include <iterator>
#include <string>

namespace sirtaki::device {
namespace {

// At least one unit, so that every block, even an empty one, has an address of its own.
std::size_t rounded(std::size_t bytes) {
  return (bytes / Arena::kAlignment + (bytes % Arena::kAlignment != 0 || bytes == 0 ? 1 : 0)) * Arena::kAlignment;
}

}  // namespace

Block::~Block() {
  if (arena_ != nullptr) {
    arena_->give_back(bytes_);
  }
}

Result<std::unique_ptr<Arena>> Arena::create(DeviceApi& device, Place place, std::size_t bytes) {
  std::unique_ptr<Arena> arena(new Arena(device, place));
  SRT_ASSIGN(arena->data_, device.allocate(place, rounded(bytes)));
  arena->holes_.emplace(0, rounded(bytes));
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) {
    device_.release(place_, data_);
  }
}

Result<Block> Arena::take(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes);
  for (const auto& [begin, size] : holes_) {
    if (size >= wanted) {
      const std::size_t at = begin;
      const std::size_t rest = size - wanted;
      holes_.erase(at);
      if (rest > 0) {
        holes_.emplace(at + wanted, rest);
      }
      return Block(this, {data_ + at, bytes});
    }
  }
  return Status(Code::kExhausted, std::to_string(bytes) + " bytes do not fit into an arena with " +
                                      std::to_string(free_bytes()) + " bytes free in " + std::to_string(holes_.size()) +
                                      " pieces");
}

std::size_t Arena::free_bytes() const {
  std::size_t sum = 0;
  for (const auto& [begin, size] : holes_) {
    sum += size;
  }
  return sum;
}

void Arena::give_back(Bytes bytes) {
  auto hole = holes_.emplace(static_cast<std::size_t>(bytes.data() - data_), rounded(bytes.size())).first;
  if (const auto next = std::next(hole); next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole != holes_.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      holes_.erase(hole);
    }
  }
}

}  // namespace sirtaki::device
