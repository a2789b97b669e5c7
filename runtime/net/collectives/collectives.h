// Collectives: one group of ranks that exchange dense memory. The engine's only view of the data plane.
//
// For: moving bytes and reducing one dtype between the ranks of one epoch. Knows no codec, no fusion, no priority but
// the number it is given. Backends are rows of catalog.h.
// Thread: every method is called on the loop the backend was made with; Done runs there too.
// Contract: Done is called exactly once per start(), never from inside start(). Until then the buffers belong to the
// backend; after it they are never touched again, also when the operation failed or was cancelled.
// Results of floating-point reductions add in rank order (0, 1, ..., P-1), so they do not depend on timing, on how a
// tensor is cut into operations, or on the backend, unless Caps::rank_order_sums is false. With Caps::sums_by_host the
// order of an allreduce is another one, as fixed.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/net/link/hosts.h"
#include "runtime/net/link/tag_group.h"
#include "runtime/net/shm/shared_buffer.h"

namespace sirtaki::net {

struct CollectiveArgs {
  OpKind kind = OpKind::kAllreduce;
  OpTag tag;  // the same on all ranks; unique among the operations in flight of this epoch
  DType dtype = DType::kF32;
  // Allreduce and reduce-scatter. kAverage: floating-point sums divided by the number of ranks, halves before they are
  // rounded, so that a mean that fits never overflows; integers: exact sum, then truncating division; bool: sum and max
  // are OR, product and min AND, average refused.
  ReduceOp op = ReduceOp::kSum;
  double divisor = 0;         // of kAverage; 0: the number of ranks; a whole number for all but halves
  Rank root = 0;              // broadcast
  std::int32_t priority = 0;  // smaller goes first among queued bytes

  // Elements, not bytes:
  //   allreduce      in.size == out.size; in and out may be the same memory
  //   broadcast      out everywhere (the root's holds the data); `in` is not used
  //   allgather      in: own block; out: blocks in rank order; recv_counts[r]: elements of rank r's block
  //   alltoall       in: blocks in rank order, send_counts[r]; out likewise, recv_counts[r]
  //   reducescatter  in: the whole; out: own block; recv_counts[r]: elements of rank r's block (sum = whole); out may
  //                  be where the own block lies in `in`
  //   barrier        nothing
  ConstBytes in;
  Bytes out;
  std::vector<std::int64_t> send_counts;
  std::vector<std::int64_t> recv_counts;
};

struct Caps {
  bool ordered = false;  // must be started in the same order on all ranks (NCCL)
  bool rank_order_sums = true;
  bool sums_by_host = false;  // an allreduce adds in rank order on each host, then the hosts in order
};

class Collectives {
 public:
  Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  virtual ~Collectives() = default;

  virtual Caps caps() const = 0;
  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  // Of a rank here: which of the job's it is, for errors.
  virtual Rank job_rank(Rank rank) const { return rank; }
  // Where reductions go host by host: whom they go through. Null elsewhere.
  virtual const HostGroups* host_groups() const { return nullptr; }

  // Some of the ranks as collectives of their own, numbered in the order given, this one among them; part of this one,
  // which outlives it, and whose abort() it does not hear of. Its tags must differ from those of all other operations.
  // nullptr: the backend has none.
  virtual std::unique_ptr<Collectives> part(const std::vector<Rank>& /*ranks*/) { return nullptr; }

  // For one allreduce, before which it is written and after which it is only read, as others may still do. Null where
  // there is none: no room, no memory in common, or too few bytes to matter.
  virtual SharedBuffer allocate_shared(std::size_t /*bytes*/) { return {}; }

  // Bad arguments (sizes that do not fit, unknown root, refused dtype) come through `done` as kInvalidArgument.
  virtual void start(CollectiveArgs args, Done done) = 0;

  // Ends the operations with `cause` that are still in flight, and drops what still arrives for these tags, now or
  // later.
  virtual void cancel(TagGroup tags, Status cause) = 0;
  // Every rank has cancelled these tags, then begun an operation in which each sends something to all, and that one has
  // succeeded here: what is kept for the tags may go.
  virtual void forget(const TagGroup& /*tags*/) {}

  // Ends everything in flight with `cause`; every later start() fails with it. The first cause is kept.
  virtual void abort(Status cause) = 0;
};

// Checks sizes, counts and dtype against the rules above; the one place that knows them.
Status check_args(const CollectiveArgs& args, Rank rank, int size);

}  // namespace sirtaki::net
