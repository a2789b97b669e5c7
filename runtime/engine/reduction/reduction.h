// Reduction: one compressed partition in flight; slices of gradients become their sum or average on all ranks.
//
// Streams use it for compressed partitions; a dense partition is one allreduce (dense_path.h). make_reduction() chooses
// the algorithm. Owned by the stream that started it and by the callbacks of its collectives, so it lives until the
// last of them. Thread: loop.
//
// On a rank, a partition takes effect wholly or not at all. The error of encoding stays in the memory of the gradient
// until every payload has been checked. Only then does the error become the residual, and the result replaces the
// gradient. A partition that is cancelled, corrupt, or not finite on some rank therefore leaves all residuals
// unchanged.
//
// One byte for each slice tells the other ranks whether this rank has it (slices.h). The byte is in the header of
// payloads, or is reduced first if ranks agree on something before they send. Every rank decodes the bytes on the wire,
// its own payload included, so results are equal on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compression/codec_state.h"
#include "runtime/base/codec_id.h"
#include "runtime/base/status.h"
#include "runtime/base/task.h"
#include "runtime/engine/common/buffer_pool.h"
#include "runtime/engine/common/tags.h"
#include "runtime/net/collectives/collectives.h"

namespace sirtaki::engine {

// A part of a tensor: whole stripes of float32.
struct ReducedSlice {
  compression::CodecState* codec_state;
  std::string_view name;  // name of the tensor
  Bytes gradient;         // input, then the result; undefined after an error
  std::int64_t offset = 0;
  bool absent = false;  // this rank has no gradient and contributes zeros
  bool finite = true;   // false: known not to be finite; true: is checked
  // Decoders of payloads by sending rank; empty: the coder of this rank decodes all. Must outlive the reduction;
  // kGather only.
  std::span<const compression::Coder* const> senders = {};
};

struct ReductionSpec {
  ReductionKind reduction;
  std::vector<ReducedSlice> slices;  // one codec for all; pointers must outlive the reduction
  std::array<OpTag, kStreamPhases> tags;
  std::int32_t priority = 0;
  ReduceOp op = ReduceOp::kSum;  // or kAverage
  int divisor = 0;               // for kAverage; 0: the number of ranks
  double postscale = 1.0;
  std::size_t exchange_bytes = net::kUsualExchange;  // see net::CollectiveArgs
};

// Reports the start of a stage to the trace; `bytes` counts the stage that ends.
enum class ReductionStage : std::uint8_t { kWire, kCode };
using StageNote = MoveFunction<void(ReductionStage next, std::int64_t bytes)>;

// Dependencies; all must outlive the reduction.
struct ReductionDeps {
  net::Collectives& net;
  BufferPool& buffers;
};

class Reduction : public std::enable_shared_from_this<Reduction> {
 public:
  Reduction(ReductionSpec spec, ReductionDeps deps, StageNote note);
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  virtual ~Reduction() = default;

  // Encodes and sends. Calls `done` exactly once, later; kCorrupt names the rank and tensor of an invalid payload.
  void start(Done done);
  // Ends the reduction with `cause` unless it has ended; messages that still arrive for its tags are dropped.
  virtual void cancel(const Status& cause);

  // Bytes that this rank has sent in its own exchanges, headers included.
  std::int64_t sent_bytes() const { return sent_bytes_; }
  // Traffic of its allreduces so far.
  const net::Traffic& allreduced() const { return allreduced_; }

 protected:
  // Encodes and begins the first exchange.
  virtual void begin() = 0;
  // Returns the maximum number of exchanges.
  virtual std::size_t phases() const = 0;

  const ReductionSpec& spec() const { return spec_; }
  const net::Collectives& net() const { return deps_.net; }
  BufferPool& buffers() { return deps_.buffers; }
  Rank rank() const { return deps_.net.rank(); }
  int size() const { return deps_.net.size(); }
  // Returns the divisor of a sum over ranks.
  int divisor() const { return spec_.op != ReduceOp::kAverage ? 1 : spec_.divisor > 0 ? spec_.divisor : size(); }

  // Each of these starts an exchange and calls `then` when it has succeeded.
  //
  // Gathers blocks of counts[r] bytes into `out`, which already holds the block of this rank in its place.
  void allgather(int phase, Bytes out, std::vector<std::int64_t> counts, MoveFunction<Status()> then);
  void alltoall(int phase, ConstBytes in, std::vector<std::int64_t> send, Bytes out, std::vector<std::int64_t> receive,
                MoveFunction<Status()> then);
  // Sums blocks of counts[r] float32 in rank order; leaves the sum of the block of this rank in its place.
  void reduce_scatter(int phase, Bytes inout, std::vector<std::int64_t> counts, MoveFunction<Status()> then);
  // Sums float32 in rank order, in place.
  void allreduce(int phase, Bytes inout, MoveFunction<Status()> then);
  // Takes the maximum of signed bytes, in place.
  void allreduce_largest(int phase, Bytes inout, MoveFunction<Status()> then);
  // Returns the callback of an exchange that another object runs and must call; `bytes` is for the trace.
  Done exchanged(std::int64_t bytes, MoveFunction<Status()> then);
  // Does the same for work that is part of encoding, such as kernels on a GPU.
  Done waited(MoveFunction<Status()> then);

 private:
  void reduce(int phase, net::CollectiveArgs args, Bytes inout, MoveFunction<Status()> then);
  void exchange(int phase, net::CollectiveArgs args, MoveFunction<Status()> then);
  void on_exchanged(const Status& status, MoveFunction<Status()>& then);

  const ReductionSpec spec_;
  ReductionDeps deps_;
  StageNote note_;
  Done done_;
  Status status_;
  bool exchanging_ = false;
  std::int64_t sent_bytes_ = 0;
  net::Traffic allreduced_;
};

// Returns the reduction that `spec` names, hierarchical if hosts reduce first; nullptr for kDense.
std::shared_ptr<Reduction> make_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note);

// Factories, one for each row of runtime/base/reductions.inc, defined in the file of the algorithm.
#define SRT_REDUCTION(name, Id, number, most_ranks) \
  std::shared_ptr<Reduction> make_##name##_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note);
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION

}  // namespace sirtaki::engine
