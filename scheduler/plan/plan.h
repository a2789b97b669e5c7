// Plan: how a stream's tensors are cut into partitions and in which order they go. Immutable, versioned, equal on all
// ranks (compared by digest).
//
// A partition is a part of one big tensor or a bucket of small ones, of one dtype, codec and reduction. Two ways to a
// plan: build(), a pure function of the tensor list and the options, before anything is measured; and
// from_partitions(), what the planner (planner.h) made of measurements. Every rank computes it itself and only the
// digest is agreed. Pure: no I/O, no thread, no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/codec_id.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::scheduler {

// How elements travel. Tensors that share a partition have it in common.
struct WireFormat {
  CodecId codec = CodecId::kNone;
  ReductionKind reduction = ReductionKind::kDense;

  // Less than the elements travel: whoever sends them has work with each.
  bool compressed() const { return reduction != ReductionKind::kDense; }

  friend bool operator==(const WireFormat&, const WireFormat&) = default;
};

// What is decided for a tensor beside its place. Part of the digest.
struct Decision {
  CodecId codec = CodecId::kNone;
  ReductionKind reduction = ReductionKind::kDense;
  std::vector<std::int64_t> params;  // the codec's (runtime/base/codec_id.h)
  // By rank, of group_topk by gather: instead of params[kKeep], which is the largest of them; empty: that of all.
  std::vector<std::int64_t> keeps = {};

  // Those of a rank.
  std::vector<std::int64_t> params_of(int rank) const;

  WireFormat format() const { return {codec, reduction}; }

  friend bool operator==(const Decision&, const Decision&) = default;
};

// A tensor as its stream registered it, and how it travels; its index in the list is its id inside the stream.
struct PlannedTensor {
  static constexpr std::int64_t kAsHeld = -1;

  std::string name;
  std::int64_t numel = 0;
  DType dtype = DType::kF32;
  Decision decision = {};
  // Elements; borders inside the tensor are multiples of it. 1: of the plan's alignment. numel: it is never cut.
  std::int64_t stripe = 1;
  // Of the whole tensor, as an allreduce of so many bytes would need (wire_cost.h). kAsHeld: the bytes of its elements.
  std::int64_t wire_bytes = kAsHeld;
  // Why it was decided so, for a person; no part of the digest.
  std::string reason = {};

  // Of `part` of its elements; rounded up.
  std::int64_t wire_bytes_of(std::int64_t part) const;
};

struct Slice {
  int tensor = 0;
  std::int64_t offset = 0;  // elements into the tensor
  std::int64_t numel = 0;
  std::int64_t at = 0;  // elements into the partition
};

struct Partition {
  int position = 0;  // place in the plan's total order; smaller goes first
  DType dtype = DType::kF32;
  std::int64_t numel = 0;
  std::vector<Slice> slices;
  WireFormat format;            // of all its tensors; the codec's parameters are each tensor's own
  std::int64_t wire_bytes = 0;  // sum of its slices'; set by the plan

  // Of its elements before encoding.
  std::size_t size_bytes() const { return static_cast<std::size_t>(numel) * dtype_size(dtype); }
};

// Sizes are of elements before encoding, and of what travels where that is lossy.
struct LayoutOptions {
  std::int64_t fusion_bytes = 1 << 20;     // small tensors share a partition up to this; the first ones hold less
  std::int64_t partition_bytes = 4 << 20;  // bigger tensors are cut into pieces of at most this
  std::int64_t alignment = 64;             // elements; borders inside a tensor are multiples of it
};

// Elements of a lossy partition, unless it is one tensor that is never cut: encoding one goes on beside the sending of
// another.
inline constexpr std::int64_t kMaxCompressedElements = 1 << 20;

// kInvalidArgument: a size below 0, or partitions too small for an aligned block.
Status check_layout_options(const LayoutOptions& options);

// kInvalidArgument: a name twice, an impossible number of elements, stripe or number of bytes.
Status check_tensors(const std::vector<PlannedTensor>& tensors);

// A plan spelled out.
struct PlanParts {
  std::vector<PlannedTensor> tensors;
  std::vector<Partition> partitions;  // in total order; their positions are given to them
  std::int64_t alignment = 64;        // elements; borders inside a tensor are multiples of it
  std::int64_t credit_bytes = 0;      // as Plan::credit_bytes()
  std::uint64_t version = 0;
};

class Plan {
 public:
  // `order` is the order in which tensors are expected to become ready (a permutation of the indices); the first are
  // sent first. Tensors with no elements belong to no partition.
  static Result<std::shared_ptr<const Plan>> build(std::vector<PlannedTensor> tensors, std::span<const int> order,
                                                   const LayoutOptions& options, std::uint64_t version);

  // Pieces of one tensor may stand anywhere in the order. kInvalidArgument, naming the tensor, unless every element of
  // every tensor is in exactly one partition, cut where it may be and travelling as it was decided.
  static Result<std::shared_ptr<const Plan>> from_partitions(PlanParts parts);

  std::uint64_t version() const { return version_; }
  // Of all that the plan is and was made from.
  std::uint64_t digest() const { return digest_; }
  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  const std::vector<Partition>& partitions() const { return partitions_; }
  // Positions of the partitions that hold a part of tensor `index`, ascending.
  const std::vector<int>& partitions_of(int index) const;
  // Payload in flight that the plan asks for; 0: it leaves that to the options.
  std::int64_t credit_bytes() const { return credit_bytes_; }

 private:
  Plan(std::vector<PlannedTensor> tensors, std::vector<Partition> partitions, std::uint64_t version);
  std::uint64_t version_ = 0;
  std::uint64_t digest_ = 0;
  std::int64_t credit_bytes_ = 0;
  std::vector<PlannedTensor> tensors_;
  std::vector<Partition> partitions_;
  std::vector<std::vector<int>> of_tensor_;
};

}  // namespace sirtaki::scheduler
