// Coder: one tensor's encoding by one codec, with what it remembers from step to step.
//
// For: the engine's reductions. Made by: PayloadCodec::open(); one for what a rank sends of its own gradient, and one
// for what it sends on as the owner of stripes. Owned by: CodecState. Threads: one at a time. Knows no network. A
// tensor is float32, cut into stripes; a piece is some whole stripes of it, and the last one may be short. What travels
// of a piece and what is left of it depends on the tensor, the residual and the coder's memory alone, not on how the
// tensor was cut into pieces.
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

// What a coder remembers from step to step; residuals are not its own.
struct CoderState {
  std::vector<float> momentum;  // of every element; empty: none. Any coder with momentum correction goes on with it
  std::vector<std::byte> own;   // means something to a coder of the same codec, parameters and shape
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

  // Whether begin() looks at the tensor, which costs a pass over it.
  virtual bool wants_whole() const { return false; }

  // Where that is wanted: once a step, before its first encode(), with the whole tensor, all finite. Writes nothing. A
  // coder for an owner, which never sees the whole, is used without.
  virtual void begin(const kernels::Feedback& /*whole*/) {}

  // Which step of the training comes, from 0: the same on all ranks, before anything else of the step. Where density
  // warms up, the first ones send more.
  virtual void at_step(std::uint64_t /*step*/) {}

  // Exact, and the same on all ranks.
  virtual std::size_t payload_bytes(std::int64_t numel) const = 0;

  // Writes exactly payload_bytes(piece.numel), and what it leaves. `arrays` begin at piece.offset; all finite
  // (kernels/finite/). Where they have no residual, what is not sent is lost.
  // What a payload means plus what is left is, element by element and without rounding, gradient plus residual; with
  // momentum correction step plus residual. Of onebit, powersgd and magnitudes that no float16 value can take (2^29
  // and up), it is what the kernels say.
  virtual void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) = 0;

  // For checkpoints, and for the coder that takes the place of this one: between two steps.
  virtual CoderState state() const { return {}; }
  // Goes on with what another coder of the tensor remembered, as far as that means something here; else begins anew.
  virtual void restore(const CoderState& /*state*/) {}

  // Where ranks reduce factors of a matrix instead of sending payloads: the steps of that. nullptr: not so.
  virtual LowRankFactors* factors() { return nullptr; }
  // Where ranks agree on thresholds and count codes: the steps of that. nullptr: not so.
  virtual CountedCodes* counted() { return nullptr; }
  // Where a tensor on a GPU can be encoded there (device_coding.h). nullptr: not so.
  virtual const DeviceCoding* on_device() const { return nullptr; }

  // `payload` came over a network and has the right size: kCorrupt when it cannot be one of this piece.
  virtual Status check(const Piece& piece, ConstBytes payload) const = 0;

  // out[i] = the sum of what the payloads, which passed check(), mean for element i, in their order; +0 to begin with.
  // piece.numel float32.
  virtual void sum(const Piece& piece, std::span<const std::byte* const> payloads, std::byte* out) const = 0;
};

}  // namespace sirtaki::compression
