// Requests of a program to the runtime: operations by name and streams. Plain data, moved into the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config/compression_spec.h"
#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"

namespace sirtaki::net {
class Collectives;
}

namespace sirtaki::engine {

struct OpSpec;

// Chooses the transport of the tensors of an operation. Thread: loop.
class OpTransport {
 public:
  virtual ~OpTransport() = default;
  using Chosen = MoveFunction<void(Result<net::Collectives*>)>;

  // Requires an operation that all ranks have agreed on, with the size of its output. May rewrite `spec` in place; keep
  // it alive until `then` has run. Calls `then` exactly once, with the collectives for the memory that `spec` names
  // now, or null for those of host memory; errors are reported later, never inline.
  virtual void choose(OpSpec& spec, Chosen then) = 0;
  // Does the same, but always chooses host memory: another rank can use no other.
  virtual void choose_host(OpSpec& spec, Chosen then) = 0;
  // Ends a choice that still waits for other ranks: its `then` gets `cause`, later. Without effect on any other one.
  virtual void give_up(const Status& cause) = 0;
};

// The priority of barriers, and of operations of up to kUrgentBytes without one: metrics, objects, losses.
inline constexpr std::int32_t kUrgentPriority = -1000;
inline constexpr std::int64_t kUrgentBytes = 64 * 1024;

// One operation by name; sirtaki_request_args documents each field.
struct OpSpec {
  OpKind kind = OpKind::kAllreduce;
  std::string name;  // empty: named (kind, call number)
  // The participants in ascending order, this rank among them: a process set. Empty: all ranks. `root` is a rank of
  // the job; splits and results are indexed by place in the set.
  std::vector<Rank> ranks = {};
  TensorView input;
  // data == nullptr if the runtime allocates it. Some ranks of an allgather or alltoall may have one and others none.
  TensorView output;
  std::vector<std::int64_t> dims;     // shape of `input`
  std::vector<std::int64_t> strides;  // empty: row-major
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> splits;  // alltoall, rows; empty: equal
  std::int32_t priority = 0;         // smaller goes first; 0: kUrgentPriority if small
  // The cudaStream_t of a tensor on a GPU: the program has queued the writers of the input on it, and will queue the
  // readers of the result; null is the default stream.
  void* cuda_stream = nullptr;
  std::shared_ptr<OpTransport> transport = {};  // null: tensors are in host memory
};

// Returns whether operations of this kind move blocks, whose sizes the ranks exchange, and never overwrite the input.
constexpr bool moves_blocks(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}

// The result that an allgather, alltoall or reducescatter allocated.
struct OpResult {
  std::vector<std::byte> data;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> received_splits;  // alltoall: rows from each rank
};

struct StreamTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;  // empty: row-major
  DType dtype = DType::kF32;
  Device device;
};

struct StreamSpec {
  std::string name;
  std::vector<Rank> ranks = {};  // see OpSpec
  std::vector<StreamTensor> tensors;
  std::vector<int> order;  // expected readiness; empty: last tensor first
  ReduceOp reduce_op = ReduceOp::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string codec;             // syntax of compression.codec; empty: the option
  Spec how = {};                 // `codec` as parsed by the engine
  std::uint64_t first_step = 0;  // step of the training, for densities that warm up
  // false: steps have no commit gate, because the ranks agree on each result by other means.
  bool commit_gate = true;
};

}  // namespace sirtaki::engine
