#include "runtime/net/shared_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

constexpr std::size_t kDrops = 1024;
constexpr std::size_t kMaxPages = 2048;

constexpr std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

// At the beginning of every segment; all zero is its first state.
struct SharedMemory::Header {
  std::atomic<std::uint64_t> drops;  // so many tags this rank has dropped in all
  std::array<std::atomic<std::uint64_t>, kDrops> dropped;
  std::array<std::atomic<Readers>, kMaxPages> pending;  // by first page of a block
};

SharedMemory::SharedMemory(Rank rank, std::vector<SharedSegment> segments)
    : rank_(rank), segments_(std::move(segments)), drops_heard_(segments_.size(), 0), dropped_(segments_.size()) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  used_.assign(pages_of(rank), 0);
}

SharedMemory::Header& SharedMemory::header(Rank rank) const {
  return *reinterpret_cast<Header*>(segments_[static_cast<std::size_t>(rank)].data());
}

std::byte* SharedMemory::page_at(Rank rank, std::uint32_t page) const {
  return segments_[static_cast<std::size_t>(rank)].data() + round_up(sizeof(Header), kPageBytes) + page * kPageBytes;
}

std::size_t SharedMemory::pages_of(Rank rank) const {
  const std::size_t first = round_up(sizeof(Header), kPageBytes);
  const std::size_t size = segments_[static_cast<std::size_t>(rank)].size();
  return size > first ? std::min((size - first) / kPageBytes, kMaxPages) : 0;
}

std::optional<SharedMemory::Room> SharedMemory::reserve(OpTag tag, std::size_t bytes, Readers readers) {
  collect();
  // Whether this is the operation that a reader dropped, or a later one with the same tag, only the link's tombstones
  // can tell.
  for (std::size_t peer = 0; peer < dropped_.size(); ++peer) {
    if ((readers & reader(static_cast<Rank>(peer))) != 0 && dropped_[peer].find(tag) != nullptr) {
      return std::nullopt;
    }
  }
  const std::size_t count = std::max(round_up(bytes, kPageBytes) / kPageBytes, std::size_t{1});
  const auto page = find_room(static_cast<std::uint32_t>(count));
  if (!page) {
    return std::nullopt;
  }
  header(rank_).pending[*page].store(readers, std::memory_order_release);
  std::fill_n(used_.begin() + *page, count, char{1});
  blocks_.push_back({tag, *page, static_cast<std::uint32_t>(count)});
  return Room{*page, {page_at(rank_, *page), bytes}};
}

std::optional<std::uint32_t> SharedMemory::find_room(std::uint32_t count) const {
  // The lowest that fits: pages used a moment ago are still in the caches.
  std::uint32_t run = 0;
  for (std::uint32_t page = 0; page < used_.size(); ++page) {
    run = used_[page] != 0 ? 0 : run + 1;
    if (run == count) {
      return page + 1 - count;
    }
  }
  return std::nullopt;
}

void SharedMemory::collect() {
  for (std::size_t peer = 0; peer < segments_.size(); ++peer) {
    if (static_cast<Rank>(peer) != rank_) {
      hear_drops(static_cast<Rank>(peer));
    }
  }
  std::erase_if(blocks_, [this](const Block& block) {
    if (header(rank_).pending[block.page].load(std::memory_order_acquire) != 0) {
      return false;
    }
    std::fill_n(used_.begin() + block.page, block.count, char{0});
    return true;
  });
}

void SharedMemory::hear_drops(Rank peer) {
  const auto index = static_cast<std::size_t>(peer);
  Header& theirs = header(peer);
  const std::uint64_t count = theirs.drops.load(std::memory_order_acquire);
  std::uint64_t& heard = drops_heard_[index];
  heard = std::max(heard, count > kDrops ? count - kDrops : 0);
  for (; heard < count; ++heard) {
    const OpTag tag(theirs.dropped[heard % kDrops].load(std::memory_order_relaxed));
    dropped_[index].add(tag, Status());
    for (const Block& block : blocks_) {
      if (block.tag == tag) {
        header(rank_).pending[block.page].fetch_and(~reader(peer), std::memory_order_acquire);
      }
    }
  }
}

Result<SharedView> SharedMemory::view(Rank peer, std::uint32_t page, std::size_t bytes) const {
  const std::size_t pages = pages_of(peer);
  if (page >= pages || bytes > (pages - page) * kPageBytes) {
    return corrupt("rank " + std::to_string(peer) + " tells of shared memory that it does not have");
  }
  return SharedView(&header(peer).pending[page], reader(rank_), {page_at(peer, page), bytes});
}

void SharedMemory::drop(OpTag tag) {
  Header& own = header(rank_);
  const std::uint64_t count = own.drops.load(std::memory_order_relaxed);
  own.dropped[count % kDrops].store(tag.value, std::memory_order_relaxed);
  own.drops.store(count + 1, std::memory_order_release);
}

std::size_t SharedMemory::pages_used() {
  collect();
  return static_cast<std::size_t>(std::count(used_.begin(), used_.end(), char{1}));
}

}  // namespace sirtaki::net
