#include "runtime/net/reducer.h"

#include <algorithm>

#include "runtime/net/combine.h"

namespace sirtaki::net {

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
  segment_bytes_ = std::max(options().segment_bytes / item(), std::size_t{1}) * item();
  const std::size_t own_segments = segment_count(own_block(), segment_bytes_);
  window_ = std::min(static_cast<std::size_t>(options().window), own_segments);
  const std::size_t place = std::min(segment_bytes_, own_block().size);
  stage_ = staging(window_ * static_cast<std::size_t>(size() - 1) * place);
  missing_.assign(window_, 0);
  next_send_.assign(static_cast<std::size_t>(size()), 0);
  for (std::size_t index = 0; index < window_; ++index) {
    post_receives(index);
  }
  for (int step = 1; step < size(); ++step) {
    const Rank peer = (rank() + step) % size();
    for (int ahead = 0; ahead < options().window; ++ahead) {
      send_next(peer);
    }
  }
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
    });
  }
}

void SegmentReducer::send_next(Rank peer) {
  const Block& block = blocks_[static_cast<std::size_t>(peer)];
  const std::size_t index = next_send_[static_cast<std::size_t>(peer)];
  if (index >= segment_count(block, segment_bytes_)) {
    return;
  }
  ++next_send_[static_cast<std::size_t>(peer)];
  const Block segment = segment_of(block, segment_bytes_, index);
  send(peer, reduce_slot(index), args().in.subspan(segment.begin, segment.size), [this, peer] { send_next(peer); });
}

void SegmentReducer::reduce_segment(std::size_t index) {
  const Block segment = segment_of(own_block(), segment_bytes_, index);
  std::vector<const std::byte*> sources(static_cast<std::size_t>(size()));
  for (Rank source = 0; source < size(); ++source) {
    sources[static_cast<std::size_t>(source)] =
        source == rank() ? args().in.data() + segment.begin : stage(index, source);
  }
  combine(args().op, args().dtype, sources, own_out_.subspan(segment.begin - own_block().begin, segment.size));
  if (index + window_ < segment_count(own_block(), segment_bytes_)) {
    post_receives(index + window_);
  }
  on_reduced(index);
}

}  // namespace sirtaki::net
