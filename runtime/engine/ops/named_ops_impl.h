// State of one operation of NamedOps; included by named_ops*.cc only.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/common/tags.h"
#include "runtime/engine/ops/named_ops.h"
#include "runtime/engine/ops/named_parts.h"

namespace sirtaki::engine {

// Buffers of an Adasum operation beside its input and output.
struct AdasumState {
  std::vector<std::int64_t> counts;  // elements in the block of each rank
  std::vector<std::byte> blocks;     // the block of this rank from the tensor of every rank
  std::vector<double> products;      // dot products of the tensors
  std::vector<double> weights;

  // Returns a pointer for each tensor, `offset` bytes into its block.
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
  std::string name;                 // with the ranks of the process set
  net::Collectives* net = nullptr;  // collectives of the ranks that take part
  std::uint64_t use = 0;
  std::uint32_t id = 0;
  std::uint16_t fingerprint = 0;
  OpStage stage = OpStage::kPayload;
  bool running = false;
  Status cancelled;                    // cause of a cancellation while the operation ran
  Status failed;                       // the first error of its collectives
  std::vector<std::int64_t> own_rows;  // sizes that this rank sends
  std::vector<std::int64_t> all_rows;  // sizes of all ranks, in rank order
  std::vector<std::byte> zeros;        // input of a rank that has joined
  std::vector<std::byte> scaled;       // scaled copy of an input that must stay as it is
  net::CollectiveArgs payload;         // arguments of the whole operation, before pieces
  NamedParts parts;
  AdasumState adasum;
  TimePoint submitted;
  TimePoint traced;
  TimerId verdict;  // runs until the cause of a lost peer is known
  std::map<Key, std::unique_ptr<Op>>::iterator place;

  OpTag sizes_tag() const { return op_tag(id, OpStage::kSizes, 0, use, fingerprint); }
  OpTag payload_tag(std::uint32_t part) const {
    return op_tag(id, OpStage::kPayload, part % NamedParts::kCycle, use, fingerprint);
  }
  net::TagGroup all_tags() const { return op_tags(id, use, fingerprint); }
};

}  // namespace sirtaki::engine
