// Slices: the slices of a compressed partition: their stripes, their headers on the wire, and their results.
//
// Shared by all reductions, which differ in the exchange only. Owner: a Reduction. Thread: loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/reduction/reduction.h"

namespace sirtaki::engine {

// A stripe of a slice.
struct Stripe {
  std::size_t slice;
  compression::Piece piece;   // place in the tensor
  std::byte* gradient;        // local gradient, then the result
  std::size_t payload_bytes;  // encoded size
  Rank owner;
  std::size_t index;  // number in the partition

  std::size_t size_bytes() const { return static_cast<std::size_t>(piece.numel) * sizeof(float); }
};

class Slices {
 public:
  // `slices` and `net`, the collectives of the exchanging ranks, must outlive this.
  Slices(std::span<const ReducedSlice> slices, const net::Collectives& net);

  const std::vector<Stripe>& stripes() const { return stripes_; }
  // Returns the size of the stripe as encoded by `from`.
  std::size_t payload_bytes(const Stripe& stripe, Rank from) const;
  std::size_t header_bytes() const { return slices_.size(); }

  // ---- sending ----

  // Returns true if the gradient of the slice is finite so far, this stripe included; marks it otherwise.
  bool check_finite(const Stripe& stripe);
  // Marks the slice if another object, such as a kernel, has found it not finite.
  void mark_not_finite(const Stripe& stripe) { own_bad_[stripe.slice] = 1; }
  // Returns the input of encoding; the error of encoding replaces the gradient.
  kernels::Feedback feedback(const Stripe& stripe) const;
  // Encodes a stripe into `payload`, and leaves the error in place of the gradient. Returns false if the gradient is
  // not finite: marks it and clears the payload.
  bool encode(const Stripe& stripe, Bytes payload);
  // Writes the state of every slice on this rank. Call it after the last encode().
  void write_header(Bytes header) const;
  // Writes the state of every slice over all ranks, as an owner of stripes.
  void write_owner_header(Bytes header) const;

  // Returns the size of two float32 for each slice, whose sums count the ranks with a gradient that is not finite, and
  // the ranks with a gradient. Ranks that reduce states instead of sending headers use them.
  std::size_t count_bytes() const { return slices_.size() * 2 * sizeof(float); }
  // Writes these counts of this rank. Call it after the last check_finite().
  void write_counts(Bytes counts) const;
  // Writes one byte for each slice (header_bytes()), whose maximum over ranks is the common state.
  void write_states(Bytes states) const;

  // ---- receiving; all headers first ----

  // Reads the output of write_header() or write_owner_header(). kCorrupt if no sender writes it.
  Status read_header(Rank from, ConstBytes header);
  // Reads the sums of write_counts() over `ranks` ranks. kCorrupt if they cannot be such sums.
  Status read_counts(ConstBytes counts, int ranks);
  // Reads the maximum of write_states(). kCorrupt if it cannot be one.
  Status read_states(ConstBytes states);
  // Returns true if the gradient of some rank, or their sum, is not finite.
  bool bad(std::size_t slice) const { return bad_[slice] != 0; }
  void mark_bad(std::size_t slice) { bad_[slice] = 1; }
  void mark_present(std::size_t slice) { present_[slice] = 1; }
  // Returns true if payloads carry data: the slice is not bad, and some rank has a gradient. Otherwise no residual
  // moves.
  bool carries(std::size_t slice) const { return bad_[slice] == 0 && present_[slice] != 0; }
  // Validates a payload; kCorrupt names `from` and the tensor. Requires carries().
  Status check(const Stripe& stripe, Rank from, ConstBytes payload) const;

  // ---- the end; after all checks ----

  // Stores the error of encode() as residual, and writes the sum of the payloads, divided by `divisor` and scaled, as
  // the result: NaN if the slice is bad, zeros if no rank has a gradient.
  void apply(const Stripe& stripe, std::span<const std::byte* const> payloads, int divisor, double postscale) const;

  // ---- the parts of apply() ----

  // Writes the result of a slice without data: NaN or zeros.
  void fill(const Stripe& stripe) const;
  // Stores the error of encoding as residual.
  void store_residual(const Stripe& stripe) const;
  // Turns a sum in place of the gradient into the result.
  void scale(const Stripe& stripe, int divisor, double postscale) const;

  compression::CodecState& codec_state(const Stripe& stripe) const { return *slices_[stripe.slice].codec_state; }

  // Returns kCorrupt with the job rank of `from`; -1: the sender is unknown.
  Status corrupt_from(Rank from, std::size_t slice, std::string_view problem) const;

 private:
  const compression::Coder& coder_of(const Stripe& stripe, Rank from) const;
  void sum(const Stripe& stripe, std::span<const std::byte* const> payloads) const;

  std::span<const ReducedSlice> slices_;
  const net::Collectives& net_;
  std::vector<Stripe> stripes_;
  std::vector<std::uint8_t> own_bad_;
  std::vector<std::uint8_t> bad_;
  std::vector<std::uint8_t> present_;
};

}  // namespace sirtaki::engine
