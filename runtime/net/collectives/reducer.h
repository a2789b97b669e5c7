// SegmentReducer: the reduce-scatter phase of a direct algorithm, in segments. Every rank sends block j of its input to
// rank j, and reduces its own block in rank order as segments arrive.
//
// A rank sends its messages in rounds, one to each peer, starting with the next rank, and never gets more than a few
// messages ahead of those that it has received. The ranks therefore pass through the rounds together, as in a pairwise
// exchange, and no two ranks send to the same rank for long: two flows into one link would fill its queue until packets
// drop, while another link is idle. Blocks of a single segment are sent to all peers at once, as are all blocks between
// ranks of one host.
// Base class of operations that reduce; same thread and lifetime as Operation.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/net/collectives/operation.h"

namespace sirtaki::net {

// A range of bytes.
struct Block {
  std::size_t begin = 0;
  std::size_t size = 0;
};

// Returns segment `index` of `block`, which is cut into pieces of `segment` bytes.
Block segment_of(const Block& block, std::size_t segment, std::size_t index);
std::size_t segment_count(const Block& block, std::size_t segment);
// Divides `elements` of `item` bytes into `parts` blocks whose sizes differ by at most one element.
std::vector<Block> equal_blocks(std::size_t elements, std::size_t item, int parts);
// Returns consecutive blocks of the given sizes.
std::vector<Block> counted_blocks(const std::vector<std::int64_t>& counts, std::size_t item);

class SegmentReducer : public Operation {
 public:
  using Operation::Operation;

 protected:
  // Sets the blocks of the input by rank, and the target of the block of this rank.
  void reduce_scatter(std::vector<Block> blocks, Bytes own_out);
  // Called when a segment of the block of this rank has its final value.
  virtual void on_reduced(std::size_t index) = 0;

  std::size_t segment_bytes() const { return segment_bytes_; }
  // Returns the limit of segments in flight for each peer.
  std::size_t window() const {
    return static_cast<std::size_t>(options().window) * options().segment_bytes / segment_bytes_;
  }
  const std::vector<Block>& blocks() const { return blocks_; }
  const Block& own_block() const { return blocks_[static_cast<std::size_t>(rank())]; }
  // Counts a received message of the allgather phase; the reduce-scatter phase counts its own.
  void received_one();
  // Sends segment `index` of the result of this rank to all ranks, after the messages of the reduce-scatter phase.
  void gather(std::size_t index);

  static std::uint32_t reduce_slot(std::size_t index) { return static_cast<std::uint32_t>(2 * index); }
  static std::uint32_t gather_slot(std::size_t index) { return static_cast<std::uint32_t>(2 * index + 1); }

 private:
  std::byte* stage(std::size_t index, Rank peer) const;
  void post_receives(std::size_t index);
  void choose_segments();
  void send_more();
  void send_reduce();
  void send_gather();
  void send_one(Rank peer, std::uint32_t slot, ConstBytes data);
  // Return the receiver of the n-th message of a round, and the sender of the message that arrives meanwhile.
  Rank nth_peer(std::size_t n) const { return (rank() + 1 + static_cast<Rank>(n)) % size(); }
  Rank nth_source(std::size_t n) const { return (rank() + size() - 1 - static_cast<Rank>(n)) % size(); }
  void reduce_segment(std::size_t index);

  std::vector<Block> blocks_;
  Bytes own_out_;
  std::size_t segment_bytes_ = 0;
  std::size_t window_ = 0;
  Staging stage_;
  std::vector<int> missing_;          // index: place in the window; messages of that segment that have not arrived
  std::size_t reduce_rounds_ = 0;     // segments of the largest block
  std::size_t next_reduce_ = 0;       // messages begun, complete rounds and part of one
  std::vector<std::size_t> gathers_;  // segments of the result to send: one round each
  std::size_t next_gather_ = 0;       // messages begun
  std::size_t received_ = 0;          // messages of both phases; those that no peer has are counted in their turn
  bool paced_ = false;
  std::size_t ahead_ = 0;  // messages that may be begun before as many have been received
  int sending_ = 0;        // messages that are not yet completely in the kernel
};

}  // namespace sirtaki::net
