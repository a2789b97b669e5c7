#include "runtime/net/collectives/reducer.h"

#include <algorithm>
#include <chrono>

#include "runtime/net/collectives/combine.h"

namespace sirtaki::net {
namespace {

// Number of segments of a block, if their size allows: the first results are sent while later input arrives.
constexpr std::size_t kSegments = 2;
constexpr std::size_t kLeastSegmentBytes = 64 * 1024;
// Paced ranks drift apart by a number of messages, so messages are short.
constexpr std::size_t kPacedSegmentBytes = 64 * 1024;
// With a single peer there is nothing to pace; several messages keep a fast link busy between callbacks.
constexpr int kSendingToOne = 4;
// Messages that may be sent before as many have arrived: one is sent while one arrives. With a long round trip there
// are more: as many as a link of 2 Gbit/s carries in it.
constexpr std::size_t kAhead = 2;
constexpr std::size_t kAheadBytesPerMicrosecond = 250;

}  // namespace

Block segment_of(const Block& block, std::size_t segment, std::size_t index) {
  const std::size_t offset = index * segment;
  return {block.begin + offset, std::min(segment, block.size - offset)};
}

std::size_t segment_count(const Block& block, std::size_t segment) {
  return (block.size + segment - 1) / segment;
}

std::vector<Block> equal_blocks(std::size_t elements, std::size_t item, int parts) {
  const auto count = static_cast<std::size_t>(parts);
  std::vector<Block> blocks(count);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t mine = elements / count + (i < elements % count ? 1 : 0);
    blocks[i] = {begin * item, mine * item};
    begin += mine;
  }
  return blocks;
}

std::vector<Block> counted_blocks(const std::vector<std::int64_t>& counts, std::size_t item) {
  std::vector<Block> blocks;
  std::size_t begin = 0;
  for (const std::int64_t count : counts) {
    const std::size_t size = static_cast<std::size_t>(count) * item;
    blocks.push_back({begin, size});
    begin += size;
  }
  return blocks;
}

void SegmentReducer::reduce_scatter(std::vector<Block> blocks, Bytes own_out) {
  blocks_ = std::move(blocks);
  own_out_ = own_out;
  choose_segments();
  const std::size_t own_segments = segment_count(own_block(), segment_bytes_);
  window_ = std::min(window(), own_segments);
  const std::size_t place = std::min(segment_bytes_, own_block().size);
  stage_ = staging(window_ * static_cast<std::size_t>(size() - 1) * place);
  missing_.assign(window_, 0);
  for (std::size_t index = 0; index < window_; ++index) {
    post_receives(index);
  }
  send_more();
}

void SegmentReducer::choose_segments() {
  std::size_t largest = 0;
  for (const Block& block : blocks_) {
    largest = std::max(largest, block.size);
  }
  const bool several_links = size() > 2 && !one_host();
  const std::size_t most =
      several_links ? std::min(kPacedSegmentBytes, options().segment_bytes) : options().segment_bytes;
  const std::size_t wanted = std::clamp(largest / kSegments, std::min(kLeastSegmentBytes, most), most);
  segment_bytes_ = std::max(wanted / item(), std::size_t{1}) * item();
  reduce_rounds_ = segment_count({0, largest}, segment_bytes_);
  paced_ = several_links && reduce_rounds_ > 1;
  const auto trip = std::chrono::duration_cast<std::chrono::microseconds>(link_round_trip()).count();
  ahead_ = kAhead + static_cast<std::size_t>(trip) * kAheadBytesPerMicrosecond / segment_bytes_;
}

std::byte* SegmentReducer::stage(std::size_t index, Rank peer) const {
  const std::size_t place = std::min(segment_bytes_, own_block().size);
  const auto column = static_cast<std::size_t>(peer < rank() ? peer : peer - 1);
  return stage_.data() + ((index % window_) * static_cast<std::size_t>(size() - 1) + column) * place;
}

void SegmentReducer::post_receives(std::size_t index) {
  const Block segment = segment_of(own_block(), segment_bytes_, index);
  missing_[index % window_] = size() - 1;
  for (int step = 1; step < size(); ++step) {
    const Rank peer = (rank() + size() - step) % size();
    recv(peer, reduce_slot(index), Bytes(stage(index, peer), segment.size), [this, index] {
      if (--missing_[index % window_] == 0) {
        reduce_segment(index);
      }
      received_one();
    });
  }
}

void SegmentReducer::gather(std::size_t index) {
  gathers_.push_back(index);
  send_more();
}

void SegmentReducer::received_one() {
  ++received_;
  send_more();
}

void SegmentReducer::send_more() {
  // Short exchanges are sent at once: between two messages, less urgent ones would be sent.
  const int several = reduce_rounds_ == 1 ? size() - 1 : 1;
  const int most = size() == 2 ? kSendingToOne : several;
  const auto others = static_cast<std::size_t>(size() - 1);
  while (sending_ < most) {
    if (paced_ && next_reduce_ + next_gather_ >= received_ + ahead_) {
      return;
    }
    if (next_reduce_ < reduce_rounds_ * others) {
      send_reduce();
    } else if (next_gather_ < gathers_.size() * others) {
      send_gather();
    } else {
      return;
    }
  }
}

void SegmentReducer::send_reduce() {
  const auto others = static_cast<std::size_t>(size() - 1);
  const std::size_t index = next_reduce_ / others;
  const Rank peer = nth_peer(next_reduce_ % others);
  ++next_reduce_;
  if (index >= segment_count(own_block(), segment_bytes_)) {
    ++received_;
  }
  const Block& block = blocks_[static_cast<std::size_t>(peer)];
  if (index < segment_count(block, segment_bytes_)) {
    const Block segment = segment_of(block, segment_bytes_, index);
    send_one(peer, reduce_slot(index), args().in.subspan(segment.begin, segment.size));
  }
}

void SegmentReducer::send_gather() {
  const auto others = static_cast<std::size_t>(size() - 1);
  const std::size_t index = gathers_[next_gather_ / others];
  const std::size_t nth = next_gather_ % others;
  const Rank peer = nth_peer(nth);
  ++next_gather_;
  if (index >= segment_count(blocks_[static_cast<std::size_t>(nth_source(nth))], segment_bytes_)) {
    ++received_;
  }
  const Block segment = segment_of({0, own_block().size}, segment_bytes_, index);
  send_one(peer, gather_slot(index), ConstBytes(own_out_).subspan(segment.begin, segment.size));
}

void SegmentReducer::send_one(Rank peer, std::uint32_t slot, ConstBytes data) {
  ++sending_;
  send(peer, slot, data, [this] {
    --sending_;
    send_more();
  });
}

void SegmentReducer::reduce_segment(std::size_t index) {
  const Block segment = segment_of(own_block(), segment_bytes_, index);
  std::vector<const std::byte*> sources(static_cast<std::size_t>(size()));
  for (Rank source = 0; source < size(); ++source) {
    sources[static_cast<std::size_t>(source)] =
        source == rank() ? args().in.data() + segment.begin : stage(index, source);
  }
  combine(args(), sources, own_out_.subspan(segment.begin - own_block().begin, segment.size));
  if (index + window_ < segment_count(own_block(), segment_bytes_)) {
    post_receives(index + window_);
  }
  on_reduced(index);
}

}  // namespace sirtaki::net
