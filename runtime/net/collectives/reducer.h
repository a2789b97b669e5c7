// SegmentReducer: the reduce-scatter phase of a direct algorithm, in segments. Every rank sends block j of its input
// to rank j and reduces its own block in rank order as segments arrive.
// A rank sends one message after the other, a round of them to the next rank, the one after it and so on, and never
// gets more than a few ahead of what it has received itself. So the ranks move through the rounds together, like in a
// pairwise exchange, and no two send to the same one for long: two flows that meet at a link fill its queue until
// packets drop, while another link has nothing to carry. Blocks of one segment go to all at once, and between ranks of
// one host there is no link to fill.
// Part of an Operation: base class of those that reduce; same thread and life.
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

// Segment `index` of `block` when it is cut into pieces of `segment` bytes.
Block segment_of(const Block& block, std::size_t segment, std::size_t index);
std::size_t segment_count(const Block& block, std::size_t segment);
// `elements` of `item` bytes over `parts` blocks whose sizes differ by one element at most.
std::vector<Block> equal_blocks(std::size_t elements, std::size_t item, int parts);
// One block after the other.
std::vector<Block> counted_blocks(const std::vector<std::int64_t>& counts, std::size_t item);

class SegmentReducer : public Operation {
 public:
  using Operation::Operation;

 protected:
  // Blocks of the input by rank, and where the own one goes.
  void reduce_scatter(std::vector<Block> blocks, Bytes own_out);
  // A segment of the own block has its final value.
  virtual void on_reduced(std::size_t index) = 0;

  std::size_t segment_bytes() const { return segment_bytes_; }
  // Segments in flight for each peer.
  std::size_t window() const {
    return static_cast<std::size_t>(options().window) * options().segment_bytes / segment_bytes_;
  }
  const std::vector<Block>& blocks() const { return blocks_; }
  const Block& own_block() const { return blocks_[static_cast<std::size_t>(rank())]; }
  // A message of the gathering phase has come; the reducing phase counts its own.
  void received_one();
  // Sends segment `index` of the own result to everybody, after what is still to be sent for the reduction.
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
  // Where the n-th message of a round goes, and where the one that arrives meanwhile comes from.
  Rank nth_peer(std::size_t n) const { return (rank() + 1 + static_cast<Rank>(n)) % size(); }
  Rank nth_source(std::size_t n) const { return (rank() + size() - 1 - static_cast<Rank>(n)) % size(); }
  void reduce_segment(std::size_t index);

  std::vector<Block> blocks_;
  Bytes own_out_;
  std::size_t segment_bytes_ = 0;
  std::size_t window_ = 0;
  Staging stage_;
  std::vector<int> missing_;          // by window place: messages of that segment still to come
  std::size_t reduce_rounds_ = 0;     // segments of the largest block
  std::size_t next_reduce_ = 0;       // messages taken up, whole rounds and part of one
  std::vector<std::size_t> gathers_;  // segments of the own result to send: one round each
  std::size_t next_gather_ = 0;       // messages taken up
  std::size_t received_ = 0;          // messages, of both phases; those that no peer has are counted in their turn
  bool paced_ = false;
  std::size_t ahead_ = 0;  // messages that may be taken up before as many have been received
  int sending_ = 0;        // messages the kernel has not wholly taken
};

}  // namespace sirtaki::net
