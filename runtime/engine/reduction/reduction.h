// Reduction: one compressed partition in flight: slices of gradients become their sum or average on all ranks.
//
// For: streams, whose dense partitions are one allreduce and need none of this. Made by make_reduction(), which knows
// the reductions. Owned by: the stream that started it and the callbacks of its collectives, so it lives until the last
// of them. Loop thread. A partition happens to a rank wholly or not at all: what encoding leaves waits in the
// gradient's own memory, and only when every payload has been checked does it become the residual, and the result take
// its place. So a partition that is cancelled, corrupt, or not finite on some rank leaves all residuals as they were.
// A byte for each slice says what a rank has of it (slices.h), at the head of payloads, or reduced first where ranks
// agree on something before they send. All ranks use what the bytes on the wire mean, their own included, so results
// are the same on all of them.
#pragma once

#include <array>
#include <cstdint>
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

// A part of a tensor, in whole stripes; float32.
struct ReducedSlice {
  compression::CodecState* memory;
  std::string_view name;  // of the tensor
  Bytes gradient;         // of the slice; the result at the end, undefined after an error
  std::int64_t offset = 0;
  bool absent = false;  // this rank has no gradient: zeros
  bool finite = true;   // false: known not to be; true: it is looked at
  // By rank, for what they have encoded; empty: all are encoded as by this rank. Outlive the reduction; kGather only.
  std::span<const compression::Coder* const> senders = {};
};

struct ReductionSpec {
  ReductionKind reduction;
  std::vector<ReducedSlice> slices;  // one codec for all; memory and names outlive the reduction
  std::array<OpTag, kStreamPhases> tags;
  std::int32_t priority = 0;
  ReduceOp op = ReduceOp::kSum;  // or kAverage
  int divisor = 0;               // of kAverage; 0: the number of ranks
  double postscale = 1.0;
};

// What the reduction does from here on, for traces; bytes: of the stage that ends.
enum class ReductionStage : std::uint8_t { kWire, kCode };
using StageNote = MoveFunction<void(ReductionStage next, std::int64_t bytes)>;

// All outlive the reduction.
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

  // Encodes and sends. `done` runs once, later; kCorrupt names rank and tensor of a payload that cannot be right.
  void start(Done done);
  // Ends it with `cause` unless it has ended; drops what still arrives for any of its tags.
  virtual void cancel(const Status& cause);

  // Bytes this rank has handed to others in its own exchanges, headers included.
  std::int64_t sent_bytes() const { return sent_bytes_; }

 protected:
  // Encodes and begins the first exchange.
  virtual void begin() = 0;
  // Exchanges there are at most.
  virtual std::size_t phases() const = 0;

  const ReductionSpec& spec() const { return spec_; }
  const net::Collectives& net() const { return deps_.net; }
  BufferPool& buffers() { return deps_.buffers; }
  Rank rank() const { return deps_.net.rank(); }
  int size() const { return deps_.net.size(); }
  // By which a sum over the ranks is divided.
  int divisor() const { return spec_.op != ReduceOp::kAverage ? 1 : spec_.divisor > 0 ? spec_.divisor : size(); }

  // Bytes of out, from the ranks' blocks of counts[r] bytes; this rank's stands in its place already.
  void allgather(int phase, Bytes out, std::vector<std::int64_t> counts, MoveFunction<Status()> then);
  void alltoall(int phase, ConstBytes in, std::vector<std::int64_t> send, Bytes out, std::vector<std::int64_t> receive,
                MoveFunction<Status()> then);
  // Of the ranks' blocks of counts[r] float32 the sums of this one's, in rank order, in its place.
  void reduce_scatter(int phase, Bytes inout, std::vector<std::int64_t> counts, MoveFunction<Status()> then);
  // Sums of float32 in rank order, in place.
  void allreduce(int phase, Bytes inout, MoveFunction<Status()> then);
  // The largest of signed bytes, in place.
  void allreduce_largest(int phase, Bytes inout, MoveFunction<Status()> then);
  // For an exchange that others make: as above once it is called, which it has to be. bytes: for the note.
  Done exchanged(std::int64_t bytes, MoveFunction<Status()> then);
  // The same for work elsewhere that is part of encoding, such as a GPU's.
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
};

// Returns the reduction of spec.reduction, by host where hosts reduce first; nullptr for kDense.
std::shared_ptr<Reduction> make_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note);

// One for each row of runtime/base/reductions.inc, defined in the file of the algorithm.
#define SRT_REDUCTION(name, Id, number, most_ranks) \
  std::shared_ptr<Reduction> make_##name##_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note);
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION

}  // namespace sirtaki::engine
