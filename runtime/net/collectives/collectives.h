// Collectives: operations on dense memory in one group of ranks. The engine uses the data plane only through this
// interface.
//
// It moves bytes, and reduces elements of one dtype, between the ranks of one epoch. It has no notion of codecs or
// fusion; priorities are numbers. Backends are rows of catalog.h.
// Thread: call every method on the loop of the backend; Done runs there, too.
// Contract: Done is called exactly once per start(), never inside start(). Until then the buffers belong to the
// backend; afterwards the backend never touches them again, even if the operation failed or was cancelled.
// Sums: floating-point reductions add in rank order (0, 1, ..., P-1), so results do not depend on timing, on the
// cutting of a tensor into operations, or on the backend. There are two exceptions: Caps::rank_order_sums is false, or
// Caps::sums_by_host is true, where an allreduce adds in a different, equally fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
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

// Exchange size of allreduces whose caller does not know the link.
inline constexpr std::size_t kUsualExchange = std::numeric_limits<std::int64_t>::max();

struct CollectiveArgs {
  OpKind kind = OpKind::kAllreduce;
  OpTag tag;  // equal on all ranks; unique among the operations in flight of this epoch
  DType dtype = DType::kF32;
  // Allreduce and reduce-scatter. kAverage: floating-point sums divided by the number of ranks, halves before they are
  // rounded, so that a mean that fits never overflows; integers: exact sum, then truncating division; bool: sum and max
  // are OR, product and min AND, average refused.
  ReduceOp op = ReduceOp::kSum;
  double divisor = 0;         // kAverage only; 0: the number of ranks; a whole number for all but halves
  Rank root = 0;              // broadcast
  std::int32_t priority = 0;  // smaller goes first among queued bytes
  // Allreduce only, equal on all ranks: the largest size that may send all data to all ranks, one latency less and more
  // bytes. From kUsualExchange on the backend decides.
  std::size_t exchange_bytes = kUsualExchange;

  // Elements, not bytes:
  //   allreduce      in.size == out.size; in and out may be the same memory
  //   broadcast      out everywhere (the root's holds the data); `in` is not used
  //   allgather      in: own block, perhaps at its place in `out`; out: blocks in rank order of recv_counts[r] elements
  //   alltoall       in: blocks in rank order, send_counts[r]; out likewise, recv_counts[r]
  //   reducescatter  in: the whole; out: own block; recv_counts[r]: elements of rank r's block (sum = whole); out may
  //                  be where the own block lies in `in`
  //   barrier        nothing
  ConstBytes in;
  Bytes out;
  std::vector<std::int64_t> send_counts;
  std::vector<std::int64_t> recv_counts;
};

// Traffic of an operation between hosts: the bytes that leave the host with the most ranks, and the number of
// exchanges, one behind the other.
struct Traffic {
  double bytes = 0;
  int exchanges = 0;

  Traffic& operator+=(const Traffic& next) {
    bytes += next.bytes;
    exchanges += next.exchanges;
    return *this;
  }
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
  // Returns the rank in the job of a rank of this group, for errors.
  virtual Rank job_rank(Rank rank) const { return rank; }
  // Returns the shortest round trip measured to the farthest rank; zero while none is known.
  virtual Duration round_trip() const { return Duration(0); }
  // Returns the groups through which reductions go host by host, or nullptr if they do not.
  virtual const HostGroups* host_groups() const { return nullptr; }

  // Returns collectives among a subset of the ranks, numbered in the given order; it must contain this rank. This
  // object must outlive them, and its abort() does not end their operations. Their tags must differ from those of all
  // other operations. Returns nullptr if the backend does not support subsets.
  virtual std::unique_ptr<Collectives> part(const std::vector<Rank>& /*ranks*/) { return nullptr; }

  // Returns the traffic of an allreduce: by default of two exchanges, with each rank on a host of its own.
  virtual Traffic traffic(const CollectiveArgs& allreduce) const {
    return {2.0 * (size() - 1) / size() * static_cast<double>(allreduce.in.size()), 2};
  }

  // Returns memory for one allreduce. Write it before the operation, and only read it afterwards, because other ranks
  // may still read it. The memory is empty if there is no room, no memory in common, or if `bytes` are too few to
  // matter.
  virtual SharedBuffer allocate_shared(std::size_t /*bytes*/) { return {}; }

  // Starts an operation. Bad arguments (sizes that do not match, unknown root, unsupported dtype) are reported through
  // `done` as kInvalidArgument.
  virtual void start(CollectiveArgs args, Done done) = 0;

  // Ends operations of `tags` in flight with `cause`, and drops messages that arrive for these tags, now or later.
  virtual void cancel(TagGroup tags, Status cause) = 0;
  // Frees the records of cancelled tags. Requires that every rank has cancelled them and then begun an operation in
  // which each rank sends to all, and that this operation has succeeded here.
  virtual void forget(const TagGroup& /*tags*/) {}

  // Ends all operations with `cause`; every later start() fails with it. The first cause is kept.
  virtual void abort(Status cause) = 0;
};

// Checks sizes, counts and dtype against the rules above, for all backends.
Status check_args(const CollectiveArgs& args, Rank rank, int size);

}  // namespace sirtaki::net
