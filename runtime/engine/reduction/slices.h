// Slices of a compressed partition: their stripes, what headers say of them, and their end.
//
// For: reductions, which differ in who sends what to whom. Owned by: a Reduction. Loop thread.
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
  compression::Piece piece;   // of the tensor
  std::byte* gradient;        // on this rank; the result at the end
  std::size_t payload_bytes;  // as encoded
  Rank owner;
  std::size_t index;  // among those of the partition

  std::size_t size_bytes() const { return static_cast<std::size_t>(piece.numel) * sizeof(float); }
};

class Slices {
 public:
  // Both outlive it. `net`: whose ranks exchange them.
  Slices(std::span<const ReducedSlice> slices, const net::Collectives& net);

  const std::vector<Stripe>& stripes() const { return stripes_; }
  // Of the stripe, as encoded by a rank.
  std::size_t payload_bytes(const Stripe& stripe, Rank from) const;
  std::size_t header_bytes() const { return slices_.size(); }

  // ---- sending ----

  // Whether the gradient is finite there, as far as this rank knows; notes it where it is not.
  bool check_finite(const Stripe& stripe);
  // Somebody else has looked.
  void mark_not_finite(const Stripe& stripe) { own_bad_[stripe.slice] = 1; }
  // What encoding reads, and leaves in the place of the gradient.
  kernels::Feedback feedback(const Stripe& stripe) const;
  // Writes the stripe's payload, and what it leaves in the place of the gradient. False: the gradient is not finite,
  // which it notes; the payload says nothing then.
  bool encode(const Stripe& stripe, Bytes payload);
  // What this rank has of every slice; after the last encode().
  void write_header(Bytes header) const;
  // As an owner of stripes: what all ranks have.
  void write_owner_header(Bytes header) const;

  // Where ranks reduce instead of sending headers: two float32 for each slice, whose sums are how many ranks have a
  // gradient that is not finite, and how many have one at all; after the last check_finite().
  std::size_t count_bytes() const { return slices_.size() * 2 * sizeof(float); }
  void write_counts(Bytes counts) const;
  // The same in a byte for each slice (header_bytes()), of which the largest of all ranks' says it.
  void write_states(Bytes states) const;

  // ---- receiving; all headers first ----

  // Of write_header() or write_owner_header(). kCorrupt: no sender writes that.
  Status read_header(Rank from, ConstBytes header);
  // Sums of write_counts() over so many ranks. kCorrupt: they cannot be that.
  Status read_counts(ConstBytes counts, int ranks);
  // The largest of write_states(). kCorrupt likewise.
  Status read_states(ConstBytes states);
  // Some rank's gradient of the slice is not finite, or their sum.
  bool bad(std::size_t slice) const { return bad_[slice] != 0; }
  void mark_bad(std::size_t slice) { bad_[slice] = 1; }
  void mark_present(std::size_t slice) { present_[slice] = 1; }
  // Payloads mean something: it is not bad, and some rank has a gradient. Else nobody gives or takes anything.
  bool carries(std::size_t slice) const { return bad_[slice] == 0 && present_[slice] != 0; }
  // kCorrupt names `from` and the tensor. Only of a slice that carries something.
  Status check(const Stripe& stripe, Rank from, ConstBytes payload) const;

  // ---- the end; after all checks ----

  // What encode() left becomes the residual, and the sum of the payloads, divided by `divisor` and scaled, the result.
  // NaN where the slice is bad; zeros where no rank has a gradient.
  void apply(const Stripe& stripe, std::span<const std::byte* const> payloads, int divisor, double postscale) const;

  // The parts of apply(). The result where nothing is carried: NaN or zeros.
  void fill(const Stripe& stripe) const;
  // What encoding left becomes the residual.
  void store_residual(const Stripe& stripe) const;
  // Sums that stand in the gradient's place become the result.
  void scale(const Stripe& stripe, int divisor, double postscale) const;

  compression::CodecState& codec_state(const Stripe& stripe) const { return *slices_[stripe.slice].codec_state; }

  // kCorrupt, naming the rank as the job does; from -1: nobody knows whose it is.
  Status corrupt_from(Rank from, std::size_t slice, std::string_view what) const;

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
