// Plan: the partitions of the tensors of a stream, and their order. Immutable, versioned, equal on all ranks (compared
// by digest).
//
// A partition is a part of one large tensor or a bucket of small ones, with one dtype, codec and reduction. A plan
// comes from build(), a pure function of tensor list and options that needs no measurement, or from from_partitions(),
// with the result of the planner (planner.h). Every rank computes its plan itself, and ranks compare only the digest.
// Pure: no I/O, no thread, no clock.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/codec_id.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::scheduler {

// The encoding of elements and the algorithm that sums them. All tensors of a partition have the same format.
struct WireFormat {
  CodecId codec = CodecId::kNone;
  ReductionKind reduction = ReductionKind::kDense;

  // Returns true unless the reduction is dense: every rank then encodes a payload and decodes others.
  bool compressed() const { return reduction != ReductionKind::kDense; }

  friend bool operator==(const WireFormat&, const WireFormat&) = default;
};

// The compression of one tensor. Part of the digest of a plan.
struct Decision {
  CodecId codec = CodecId::kNone;
  ReductionKind reduction = ReductionKind::kDense;
  std::vector<std::int64_t> params;  // parameters of the codec (runtime/base/codec_id.h)
  // Used by group_topk with kGather only: the kept elements of every rank, in place of params[kKeep], which is the
  // largest of them. Empty: all ranks use params[kKeep].
  std::vector<std::int64_t> keeps = {};

  // Returns the parameters that this rank uses.
  std::vector<std::int64_t> params_of(int rank) const;

  WireFormat format() const { return {codec, reduction}; }

  friend bool operator==(const Decision&, const Decision&) = default;
};

// A tensor as its stream registered it, and its compression. The index in the list is the id of the tensor in the
// stream.
struct PlannedTensor {
  static constexpr std::int64_t kAsHeld = -1;

  std::string name;
  std::int64_t numel = 0;
  DType dtype = DType::kF32;
  Decision decision = {};
  // In elements: borders inside the tensor are multiples of it. 1: the alignment of the plan applies. numel: the tensor
  // is never cut.
  std::int64_t stripe = 1;
  // Bytes of an allreduce that loads the network as much as this tensor (wire_cost.h). kAsHeld: the bytes of its
  // elements.
  std::int64_t wire_bytes = kAsHeld;
  // Reason of the decision, for a person; no part of the digest.
  std::string reason = {};

  // Returns the share of wire_bytes of `part` elements, rounded up.
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
  WireFormat format;            // shared by all tensors; codec parameters differ
  std::int64_t wire_bytes = 0;  // sum over the slices; set by the plan

  // Returns the bytes of the elements before encoding.
  std::size_t size_bytes() const { return static_cast<std::size_t>(numel) * dtype_size(dtype); }
};

// Sizes count elements before encoding, and payloads of compressed tensors.
struct LayoutOptions {
  // Small tensors share a partition up to this size; the first partitions hold less.
  std::int64_t fusion_bytes = 1 << 20;
  // Larger tensors are cut into pieces of at most this size.
  std::int64_t partition_bytes = 4 << 20;
  std::int64_t alignment = 64;  // elements; borders inside a tensor are multiples of it
};

// Limit of a compressed partition in elements, unless it is one tensor that is never cut: encoding of one partition
// overlaps with the sending of another.
inline constexpr std::int64_t kMaxCompressedElements = 1 << 20;

inline constexpr std::int64_t kAnySize = std::numeric_limits<std::int64_t>::max();

// Checks options. kInvalidArgument: a size below 0, or partitions too small for an aligned block.
Status check_layout_options(const LayoutOptions& options);

// Checks tensors. kInvalidArgument: a duplicate name, an impossible number of elements, stripe or number of bytes.
Status check_tensors(const std::vector<PlannedTensor>& tensors);

// The parts of a plan.
struct PlanParts {
  std::vector<PlannedTensor> tensors;
  std::vector<Partition> partitions;       // in total order; the plan sets their positions
  std::int64_t alignment = 64;             // elements; borders inside a tensor are multiples of it
  std::int64_t credit_bytes = 0;           // see Plan::credit_bytes()
  std::int64_t exchange_bytes = kAnySize;  // see Plan::exchange_bytes()
  std::uint64_t version = 0;
};

class Plan {
 public:
  // Makes the first plan. `order` is the order in which tensors are expected to become ready (a permutation of the
  // indices); the first ones are sent first. Tensors without elements belong to no partition.
  static Result<std::shared_ptr<const Plan>> build(std::vector<PlannedTensor> tensors, std::span<const int> order,
                                                   const LayoutOptions& options, std::uint64_t version,
                                                   std::int64_t exchange_bytes = kAnySize);

  // Makes a plan of given partitions. Pieces of one tensor may have any place in the order. kInvalidArgument, with the
  // name of the tensor, unless every element of every tensor is in exactly one partition, with borders where the tensor
  // may be cut, in the format of its decision.
  static Result<std::shared_ptr<const Plan>> from_partitions(PlanParts parts);

  std::uint64_t version() const { return version_; }
  // Returns the digest of the plan and of its inputs.
  std::uint64_t digest() const { return digest_; }
  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  const std::vector<Partition>& partitions() const { return partitions_; }
  // Returns the positions of the partitions that hold a part of tensor `index`, ascending.
  const std::vector<int>& partitions_of(int index) const;
  // Returns the limit of payload bytes in flight that the plan asks for; 0: the options decide.
  std::int64_t credit_bytes() const { return credit_bytes_; }
  // Returns the size up to which an allreduce may send all data to all ranks, which saves a latency and costs bytes.
  std::int64_t exchange_bytes() const { return exchange_bytes_; }

 private:
  Plan(std::vector<PlannedTensor> tensors, std::vector<Partition> partitions, std::uint64_t version);
  std::uint64_t version_ = 0;
  std::uint64_t digest_ = 0;
  std::int64_t credit_bytes_ = 0;
  std::int64_t exchange_bytes_ = kAnySize;
  std::vector<PlannedTensor> tensors_;
  std::vector<Partition> partitions_;
  std::vector<std::vector<int>> of_tensor_;
};

}  // namespace sirtaki::scheduler
