// SharedMemory: what the ranks of one host hand each other without the network stack: blocks that a rank fills in its
// own segment and others read.
//
// Owned by: the data plane (one an epoch), tests. Thread: the loop of the link it was connected over.
// A block lives until each of its readers has given it back: read it, or dropped its tag. The owner learns that from
// the shared memory itself when it needs room, so nobody is woken for it. No room is no error: what does not fit
// travels over the link. Whoever is told of a block is told over the link, which also says when a peer is gone. A block
// that was published after a reader had dropped its tag waits until that reader looks again: when the owner drops the
// tag or finds no room, and before the reader forgets the tag. Memory that the owner has been lent is such a block as
// well, once it is shown to readers: it is used again when they and the owner have given it back. Not for: waking,
// matching, order (Operation does that with messages).
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

// A block of a peer, readable until this is destroyed.
class SharedView {
 public:
  SharedView() = default;
  // `open`: set while it lives.
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
  // More ranks on one host stay on the link.
  static constexpr int kMaxRanks = 64;
  static constexpr std::size_t kPageBytes = std::size_t{64} * 1024;
  // A set of ranks, one bit each.
  using Readers = std::uint64_t;
  static constexpr Readers reader(Rank rank) { return Readers{1} << rank; }

  // Segments by rank, the own one among them. `job_ranks`: what errors call the ranks.
  SharedMemory(Rank rank, std::vector<SharedSegment> segments, std::vector<Rank> job_ranks);

  // Room of this rank for `readers`; they know it by its page number. To be filled before they are told of it.
  struct Room {
    std::uint32_t page = 0;
    Bytes memory;
  };
  // None when there is no room now, or this rank has dropped the tag.
  std::optional<Room> reserve(OpTag tag, std::size_t bytes, Readers readers);
  // None when there is no room now: half of it stays for blocks. Keeps this alive.
  SharedBuffer allocate_shared(std::size_t bytes);
  // Makes lent memory the block of `tag`, whose first page this gives; each of the readers is to be told of something
  // in it. None when `data` is not the beginning of such memory, when a reader of an earlier operation has not given it
  // back, or when this rank has dropped the tag.
  std::optional<std::uint32_t> show(OpTag tag, ConstBytes data, Readers readers);
  // `bytes` of the block of `tag` that begins at `page` of the peer's segment. kCorrupt when there is none for this
  // rank.
  Result<SharedView> view(OpTag tag, Rank peer, std::uint32_t page, std::size_t bytes);
  // This rank wants no more of `tags`, now and later, than the views it has open.
  void drop(const TagGroup& tags);
  // The peer had no room: gives back what was published for this rank after it had dropped the tag.
  void give_back(Rank peer);
  // No rank publishes anything for these tags any more, as this one knows.
  void forget(const TagGroup& tags);

  // Pages that hold blocks, after a look at which have been given back.
  std::size_t pages_used();
  std::size_t pages() const { return used_.size(); }

 private:
  struct Header;
  struct Block {
    OpTag tag;
    std::uint32_t page = 0;
    std::uint32_t count = 0;
    bool lent = false;
  };

  Header& header(Rank rank) const;
  std::byte* page_at(Rank rank, std::uint32_t page) const;
  std::size_t pages_of(Rank rank) const;
  std::optional<std::uint32_t> find_room(std::uint32_t count) const;
  void take(OpTag tag, std::uint32_t page, std::uint32_t count, Readers readers, bool lent);
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
  std::vector<std::uint64_t> calls_heard_;  // by rank
  std::vector<std::vector<char>> open_;     // by rank and page: a view of the block that begins there
};

struct SharedMemorySetup {
  std::size_t bytes = std::size_t{16} * 1024 * 1024;  // of each rank; less when the system does not give as much
  Duration timeout = std::chrono::seconds(30);
};

// Either memory that every rank of the link has mapped, or why there is none: the same choice on all ranks.
struct SharedMemoryOutcome {
  std::shared_ptr<SharedMemory> memory;
  std::string refused;  // why not: on the first rank that cannot, which is to say so; empty on the others
};

// Makes a segment and maps those of all others, on the link's loop. A rank that cannot makes all do without. `done`
// gets an error only when the link fails or a rank is silent.
void connect_shared_memory(PointToPoint& link, const SharedMemorySetup& setup,
                           MoveFunction<void(Result<SharedMemoryOutcome>)> done);

}  // namespace sirtaki::net
