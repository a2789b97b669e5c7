#include "runtime/net/shm/shared_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/round_up.h"

namespace sirtaki::net {
namespace {

constexpr std::size_t kMaxPages = 2048;

}  // namespace

// The beginning of every segment. All zeros is its initial state.
struct SharedMemory::Header {
  std::atomic<std::uint64_t> calls;  // incremented when readers that have dropped tags must look for blocks to release
  // Indexed by the first page of a block. The tag is written before the readers, and remains until there are none.
  std::array<std::atomic<Readers>, kMaxPages> pending;
  std::array<std::atomic<std::uint64_t>, kMaxPages> tags;
};

SharedMemory::SharedMemory(Rank rank, std::vector<SharedSegment> segments, std::vector<Rank> job_ranks)
    : rank_(rank), segments_(std::move(segments)), job_ranks_(std::move(job_ranks)), calls_heard_(segments_.size(), 0) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  used_.assign(pages_of(rank), 0);
  for (std::size_t peer = 0; peer < segments_.size(); ++peer) {
    open_.emplace_back(pages_of(static_cast<Rank>(peer)), char{0});
  }
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
  if (dropped_.find(tag) != nullptr) {
    return std::nullopt;
  }
  const std::size_t count = std::max(round_up(bytes, kPageBytes) / kPageBytes, std::size_t{1});
  const auto page = find_room(static_cast<std::uint32_t>(count));
  if (!page) {
    return std::nullopt;
  }
  take(tag, *page, static_cast<std::uint32_t>(count), readers, false);
  return Room{*page, {page_at(rank_, *page), bytes}};
}

void SharedMemory::take(OpTag tag, std::uint32_t page, std::uint32_t count, Readers readers, bool buffer) {
  header(rank_).tags[page].store(tag.value, std::memory_order_relaxed);
  header(rank_).pending[page].store(readers, std::memory_order_release);
  std::fill_n(used_.begin() + page, count, char{1});
  blocks_.push_back({tag, page, count, buffer});
  shared_pages_ += buffer ? count : 0;
}

SharedBuffer SharedMemory::allocate_shared(std::size_t bytes) {
  collect();
  const std::size_t count = round_up(bytes, kPageBytes) / kPageBytes;
  if (count == 0 || 2 * (shared_pages_ + count) > pages()) {
    return {};
  }
  const auto page = find_room(static_cast<std::uint32_t>(count));
  if (!page) {
    return {};
  }
  take(OpTag(), *page, static_cast<std::uint32_t>(count), reader(rank_), true);
  const auto give_back = [this, self = shared_from_this(), page = *page](void*) {
    header(rank_).pending[page].fetch_and(~reader(rank_), std::memory_order_release);
  };
  std::byte* const memory = page_at(rank_, *page);
  return {std::shared_ptr<void>(memory, give_back), {memory, bytes}};
}

std::optional<std::uint32_t> SharedMemory::publish_buffer(OpTag tag, ConstBytes data, Readers readers) {
  const auto block =
      std::ranges::find_if(blocks_, [&](const Block& b) { return b.buffer && page_at(rank_, b.page) == data.data(); });
  if (block == blocks_.end() || data.size() > block->count * kPageBytes || dropped_.find(tag) != nullptr ||
      header(rank_).pending[block->page].load(std::memory_order_acquire) != reader(rank_)) {
    return std::nullopt;
  }
  block->tag = tag;
  header(rank_).tags[block->page].store(tag.value, std::memory_order_relaxed);
  header(rank_).pending[block->page].fetch_or(readers, std::memory_order_release);
  return block->page;
}

std::optional<std::uint32_t> SharedMemory::find_room(std::uint32_t count) const {
  // The lowest pages that fit were used most recently, so they are still in the caches.
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
  for (std::size_t peer = 0; peer < segments_.size() && !dropped_.empty(); ++peer) {
    const std::uint64_t calls = header(static_cast<Rank>(peer)).calls.load(std::memory_order_acquire);
    if (std::exchange(calls_heard_[peer], calls) != calls) {
      give_back(static_cast<Rank>(peer));
    }
  }
  free_blocks();
}

void SharedMemory::free_blocks() {
  std::erase_if(blocks_, [this](const Block& block) {
    if (header(rank_).pending[block.page].load(std::memory_order_acquire) != 0) {
      return false;
    }
    std::fill_n(used_.begin() + block.page, block.count, char{0});
    shared_pages_ -= block.buffer ? block.count : 0;
    return true;
  });
}

// Only this rank clears its own bit, so a block with that bit keeps its tag.
void SharedMemory::give_back(Rank peer) {
  if (dropped_.empty() || peer == rank_) {
    return;
  }
  Header& theirs = header(peer);
  const std::vector<char>& open = open_[static_cast<std::size_t>(peer)];
  for (std::size_t page = 0; page < open.size(); ++page) {
    std::atomic<Readers>& pending = theirs.pending[page];
    if ((pending.load(std::memory_order_acquire) & reader(rank_)) == 0 || open[page] != 0) {
      continue;
    }
    if (dropped_.find(OpTag(theirs.tags[page].load(std::memory_order_relaxed))) != nullptr) {
      pending.fetch_and(~reader(rank_), std::memory_order_release);
    }
  }
}

void SharedMemory::give_back_all() {
  for (std::size_t peer = 0; peer < segments_.size(); ++peer) {
    give_back(static_cast<Rank>(peer));
  }
}

Result<SharedView> SharedMemory::view(OpTag tag, Rank peer, std::uint32_t page, std::size_t bytes) {
  const std::size_t pages = pages_of(peer);
  if (page < pages && bytes <= (pages - page) * kPageBytes) {
    std::atomic<Readers>& pending = header(peer).pending[page];
    char& open = open_[static_cast<std::size_t>(peer)][page];
    if ((pending.load(std::memory_order_acquire) & reader(rank_)) != 0 && open == 0 &&
        header(peer).tags[page].load(std::memory_order_relaxed) == tag.value) {
      return SharedView(&pending, reader(rank_), &open, {page_at(peer, page), bytes});
    }
  }
  const auto name = [this](Rank rank) { return "rank " + std::to_string(job_ranks_[static_cast<std::size_t>(rank)]); };
  return corrupt(name(peer) + " tells of shared memory that it does not have for " + name(rank_));
}

void SharedMemory::drop(const TagGroup& tags) {
  if (!dropped_.add(tags, Status())) {
    return;
  }
  give_back_all();
  free_blocks();
  // A reader that dropped the tag before the block was published does not know of the block.
  if (std::ranges::any_of(blocks_, [&](const Block& block) { return tags.contains(block.tag); })) {
    header(rank_).calls.fetch_add(1, std::memory_order_release);
  }
}

void SharedMemory::forget(const TagGroup& tags) {
  give_back_all();
  dropped_.forget(tags);
}

std::size_t SharedMemory::pages_used() {
  collect();
  return static_cast<std::size_t>(std::count(used_.begin(), used_.end(), char{1}));
}

}  // namespace sirtaki::net
