// What a program asks of the runtime: operations by name and streams. Plain data, moved into the engine.
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

// How the tensors of an operation travel that all ranks have agreed on; loop thread.
class OpTransport {
 public:
  virtual ~OpTransport() = default;
  // Changes `spec`, which stays where it is until then, so that its tensors can be used by what `then` gets:
  // collectives of memory as `spec` has it now, or null: those of the host. `then` once; with an error not from within.
  virtual void choose(OpSpec& spec, MoveFunction<void(Result<net::Collectives*>)> then) = 0;
};

// The priority of barriers and of operations of up to kUrgentBytes that are given none: metrics, objects, losses.
inline constexpr std::int32_t kUrgentPriority = -1000;
inline constexpr std::int64_t kUrgentBytes = 64 * 1024;

// One operation by name (sirtaki_request_args says what each field means).
struct OpSpec {
  OpKind kind = OpKind::kAllreduce;
  std::string name;  // empty: named (kind, call number)
  // Those that take part, ascending, this rank among them: a process set. Empty: all. `root` is a rank of the job,
  // splits and results are by place in the set.
  std::vector<Rank> ranks = {};
  TensorView input;
  TensorView output;                  // data == nullptr where the runtime allocates
  std::vector<std::int64_t> dims;     // of the input
  std::vector<std::int64_t> strides;  // of the input; empty: row-major
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> splits;  // alltoall, rows; empty: equal
  std::int32_t priority = 0;         // smaller goes first; 0: kUrgentPriority where small
  // Of tensors on a GPU: the cudaStream_t on which the program has queued what writes them, and will queue what uses
  // the result; null is the default stream.
  void* cuda_stream = nullptr;
  std::shared_ptr<OpTransport> transport = {};  // null: its tensors are in the host's memory
};

// What an allgather, alltoall or reducescatter allocated.
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
  std::vector<Rank> ranks = {};  // as OpSpec's
  std::vector<StreamTensor> tensors;
  std::vector<int> order;  // expected readiness; empty: last tensor first
  ReduceOp reduce_op = ReduceOp::kAverage;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string codec;             // how they travel, as compression.codec; empty: as options say
  Spec how = {};                 // `codec` as the engine has read it
  std::uint64_t first_step = 0;  // of the training, for densities that warm up
};

}  // namespace sirtaki::engine
