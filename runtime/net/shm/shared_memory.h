// SharedMemory: blocks that a rank writes into its own segment and other ranks of the host read, past the network
// stack.
//
// A block lives until each of its readers has released it, by reading it or by dropping its tag. Readers learn of a
// block by a message over the link, which also reports lost peers. The owner reads the releases from the shared memory
// when it needs room, so no rank is woken for them. Lack of room is not an error: the data is sent over the link
// instead. A block published after a reader has dropped its tag stays until that reader looks again: when the owner
// drops the tag or finds no room, and before the reader forgets the tag. A SharedBuffer is such a block, too, once it
// is published; it is reused when readers and owner have released it.
// Owned by: the data plane (one per epoch), tests. Thread: the loop of the link over which it was connected. Not for
// waking, matching and order: Operation does these by messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/net/link/point_to_point.h"
#include "runtime/net/link/tombstones.h"
#include "runtime/net/shm/shared_buffer.h"
#include "runtime/net/shm/shared_segment.h"

namespace sirtaki::net {

// A block of a peer. The memory is readable until the view is destroyed.
class SharedView {
 public:
  SharedView() = default;
  // Sets `open` for the lifetime of the view.
  SharedView(std::atomic<std::uint64_t>* pending, std::uint64_t reader, char* open, ConstBytes data)
      : pending_(pending), reader_(reader), open_(open), data_(data) {
    *open_ = 1;
  }
  SharedView(SharedView&& other) noexcept
      : pending_(std::exchange(other.pending_, nullptr)),
        reader_(other.reader_),
        open_(other.open_),
        data_(other.data_) {}
  SharedView& operator=(SharedView&& other) noexcept {
    std::swap(pending_, other.pending_);
    std::swap(reader_, other.reader_);
    std::swap(open_, other.open_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~SharedView() {
    if (pending_ != nullptr) {
      *open_ = 0;
      pending_->fetch_and(~reader_, std::memory_order_release);
    }
  }
  ConstBytes data() const { return data_; }

 private:
  std::atomic<std::uint64_t>* pending_ = nullptr;
  std::uint64_t reader_ = 0;
  char* open_ = nullptr;
  ConstBytes data_;
};

class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  // With more ranks on one host, all data is sent over the link.
  static constexpr int kMaxRanks = 64;
  static constexpr std::size_t kPageBytes = std::size_t{64} * 1024;
  // A set of ranks, one bit each.
  using Readers = std::uint64_t;
  static constexpr Readers reader(Rank rank) { return Readers{1} << rank; }

  // `segments` by rank, including that of this rank. `job_ranks` are the names of the ranks in errors.
  SharedMemory(Rank rank, std::vector<SharedSegment> segments, std::vector<Rank> job_ranks);

  // Reserves a block of this rank for `readers`, which address it by its page number. Fill it before you publish it.
  struct Room {
    std::uint32_t page = 0;
    Bytes memory;
  };
  // Returns nullopt if there is no room now, or if this rank has dropped the tag.
  std::optional<Room> reserve(OpTag tag, std::size_t bytes, Readers readers);
  // Returns empty memory if there is no room now; half of the segment is reserved for blocks. Keeps this object alive.
  SharedBuffer allocate_shared(std::size_t bytes);
  // Publishes a SharedBuffer as the block of `tag` and returns its first page; send every reader a message about it.
  // Returns nullopt if `data` is not the beginning of such a buffer, if a reader of an earlier operation has not
  // released it, or if this rank has dropped the tag.
  std::optional<std::uint32_t> publish_buffer(OpTag tag, ConstBytes data, Readers readers);
  // Returns a view of `bytes` of the block of `tag` at `page` of the segment of `peer`. Returns kCorrupt if there is no
  // such block for this rank.
  Result<SharedView> view(OpTag tag, Rank peer, std::uint32_t page, std::size_t bytes);
  // Drops `tags`: this rank reads nothing more of them, now or later, except through views that are open.
  void drop(const TagGroup& tags);
  // Releases blocks that `peer`, which has no room, published after this rank had dropped their tag.
  void give_back(Rank peer);
  // Forgets tags. Requires that no rank publishes a block of these tags any more.
  void forget(const TagGroup& tags);

  // Returns the number of pages in use, after collecting released blocks.
  std::size_t pages_used();
  std::size_t pages() const { return used_.size(); }

 private:
  struct Header;
  struct Block {
    OpTag tag;
    std::uint32_t page = 0;
    std::uint32_t count = 0;
    bool buffer = false;
  };

  Header& header(Rank rank) const;
  std::byte* page_at(Rank rank, std::uint32_t page) const;
  std::size_t pages_of(Rank rank) const;
  std::optional<std::uint32_t> find_room(std::uint32_t count) const;
  void take(OpTag tag, std::uint32_t page, std::uint32_t count, Readers readers, bool buffer);
  void collect();
  void free_blocks();
  void give_back_all();

  const Rank rank_;
  std::vector<SharedSegment> segments_;
  const std::vector<Rank> job_ranks_;
  std::vector<char> used_;  // own pages
  std::vector<Block> blocks_;
  std::size_t shared_pages_ = 0;
  Tombstones dropped_;
  std::vector<std::uint64_t> calls_heard_;  // index: rank
  std::vector<std::vector<char>> open_;     // index: rank, page; set while a view of the block exists
};

struct SharedMemorySetup {
  std::size_t bytes = std::size_t{16} * 1024 * 1024;  // per rank; less if the system does not provide as much
  Duration timeout = std::chrono::seconds(30);
};

// Memory that every rank of the link has mapped, or the reason why there is none. Equal on all ranks.
struct SharedMemoryOutcome {
  std::shared_ptr<SharedMemory> memory;
  std::string refused;  // the reason, on the first rank that cannot, which logs it; empty on the others
};

// Creates a segment and maps those of all other ranks, on the loop of the link. If one rank cannot, none uses shared
// memory. Calls `done` with an error only if the link fails or a rank does not answer in time.
void connect_shared_memory(PointToPoint& link, const SharedMemorySetup& setup,
                           MoveFunction<void(Result<SharedMemoryOutcome>)> done);

}  // namespace sirtaki::net
