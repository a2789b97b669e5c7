// One operation of NamedOps; for named_ops*.cc only.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/common/tags.h"
#include "runtime/engine/ops/named_ops.h"
#include "runtime/engine/ops/named_parts.h"

namespace sirtaki::engine {

// What an Adasum needs beside input and output.
struct AdasumState {
  std::vector<std::int64_t> counts;  // elements of each rank's block
  std::vector<std::byte> blocks;     // this rank's block of every rank's tensor
  std::vector<double> products;      // dot products of the tensors
  std::vector<double> weights;

  std::vector<const std::byte*> arrays(std::size_t block_bytes, std::size_t offset) const {
    std::vector<const std::byte*> from;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      from.push_back(blocks.data() + rank * block_bytes + offset);
    }
    return from;
  }
};

struct NamedOps::Op {
  OpSpec spec;
  OpDone done;
  OpResult result;
  std::string name;                 // with the process set's ranks
  net::Collectives* net = nullptr;  // of those that take part
  std::uint64_t use = 0;
  std::uint32_t id = 0;
  std::uint16_t fingerprint = 0;
  OpStage stage = OpStage::kPayload;
  bool running = false;
  Status cancelled;                    // why, when it was cancelled while running
  Status failed;                       // the first error of its collectives
  std::vector<std::int64_t> own_rows;  // sizes exchange: what this rank says
  std::vector<std::int64_t> all_rows;  // and what all say, in rank order
  std::vector<std::byte> zeros;        // of a rank that has joined
  std::vector<std::byte> scaled;       // copy of the input where it must be scaled and may not be changed
  net::CollectiveArgs payload;         // of the whole
  NamedParts parts;
  AdasumState adasum;
  TimePoint submitted;
  TimePoint traced;
  TimerId verdict;  // while it is not known why a peer is gone
  std::map<Key, std::unique_ptr<Op>>::iterator place;

  OpTag sizes_tag() const { return op_tag(id, OpStage::kSizes, 0, use, fingerprint); }
  OpTag payload_tag(std::uint32_t part) const {
    return op_tag(id, OpStage::kPayload, part % NamedParts::kCycle, use, fingerprint);
  }
  net::TagGroup all_tags() const { return op_tags(id, use, fingerprint); }
};

}  // namespace sirtaki::engine
