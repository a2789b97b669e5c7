// Coder: the encoding of one tensor by one codec, with its state from step to step.
//
// A tensor is float32, cut into stripes; a piece is a number of whole stripes, the last of which may be short. The
// payload and the residual of a piece depend only on the tensor, the residual and the coder state, not on the cut into
// pieces.
// Made by PayloadCodec::open(). A rank has one coder for its own gradient, and one for the sums of the stripes it owns.
// Used by the reduction algorithms of the engine. Owned by CodecState. Threads: one at a time. Has no notion of a
// network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/feedback.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::compression {

// A tensor to be encoded: `rows` rows (filters of a convolution, rows of a matrix) of numel / rows elements; a tensor
// without rows has one.
struct Shape {
  std::int64_t numel = 0;
  std::int64_t rows = 1;
};

// Elements [offset, offset + numel) of a tensor.
struct Piece {
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

// The state of a coder from step to step, without residuals.
struct CoderState {
  // one per element; empty without momentum; any coder with momentum correction accepts it
  std::vector<float> momentum;
  std::vector<std::byte> own;  // accepted only by a coder of the same codec, parameters and shape
};

class CountedCodes;
class DeviceCoding;
class LowRankFactors;

class Coder {
 public:
  Coder() = default;
  Coder(const Coder&) = delete;
  Coder& operator=(const Coder&) = delete;
  virtual ~Coder() = default;

  // Returns true if begin() reads the tensor, which costs a pass over it.
  virtual bool wants_whole() const { return false; }

  // Reads the whole tensor, all finite, and writes nothing. Called once a step before the first encode() if
  // wants_whole(). Not called on the coder of an owner, which never sees the whole tensor.
  virtual void begin(const kernels::Feedback& /*whole*/) {}

  // Sets the number of the next training step, from 0: the same on all ranks, before any other call of the step. During
  // a density warm-up, the first steps send more.
  virtual void at_step(std::uint64_t /*step*/) {}

  // Returns the exact size, the same on all ranks.
  virtual std::size_t payload_bytes(std::int64_t numel) const = 0;

  // Writes exactly payload_bytes(piece.numel), and the residual. `arrays` begin at piece.offset; all are finite
  // (kernels/finite/). Without a residual, the part not sent is lost.
  // The decoded payload plus the new residual equals gradient plus residual, element by element and without rounding;
  // with momentum correction, step plus residual. For onebit, powersgd and magnitudes beyond float16 (2^29 and up), the
  // kernels define the rounding.
  virtual void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) = 0;

  // Returns the state for a checkpoint, or for the coder that replaces this one. Requires a point between two steps.
  virtual CoderState state() const { return {}; }
  // Continues with the state of another coder of the tensor as far as it applies here; otherwise starts anew.
  virtual void restore(const CoderState& /*state*/) {}

  // Returns the steps for reducing the factors of a matrix instead of sending payloads; nullptr if unsupported.
  virtual LowRankFactors* factors() { return nullptr; }
  // Returns the steps for agreeing on thresholds and counting codes; nullptr if unsupported.
  virtual CountedCodes* counted() { return nullptr; }
  // Returns the encoding of tensors on a GPU (device_coding.h); nullptr if unsupported.
  virtual DeviceCoding* on_device() { return nullptr; }

  // Checks a `payload` of the right size that came over a network: returns kCorrupt if it cannot be one of this piece.
  virtual Status check(const Piece& piece, ConstBytes payload) const = 0;

  // Writes the sum of the decoded payloads, which passed check(), to `out`, piece.numel float32; adds in their order,
  // starting at +0.
  virtual void sum(const Piece& piece, std::span<const std::byte* const> payloads, std::byte* out) const = 0;
};

}  // namespace sirtaki::compression
