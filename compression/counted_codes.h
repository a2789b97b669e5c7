// CountedCodes: ternary codes with thresholds that all ranks share, so that their sums are integers.
//
// A step: want(); the largest exponent of each block over all ranks; encode(); owners count(); all decode(). Used by
// codec twobit, in the reduction algorithm in which ranks agree on thresholds before they encode. Owned by the coder.
// Threads: one at a time; static functions: any. Has no notion of a network.
// Sources: threshold quantisation (Strom, 2015; kernels/twobit/twobit.h); integer sums in the network as in THC (Li et
// al., 2024), here without a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compression/coder.h"
#include "kernels/twobit/exponent.h"
#include "kernels/twobit/twobit.h"

namespace sirtaki::compression {

class CountedCodes {
 public:
  // Elements that share a threshold 2^e.
  static constexpr std::int64_t kBlock = 2048;
  static constexpr int kLeastExponent = kernels::kTwobitLeastChosen;
  static constexpr int kMostRanks = kernels::kTwobitMostCounted;

  CountedCodes() = default;
  CountedCodes(const CountedCodes&) = delete;
  CountedCodes& operator=(const CountedCodes&) = delete;
  virtual ~CountedCodes() = default;

  // Returns the size of the exponents of a piece: an int8 for each of its blocks.
  static std::size_t exponent_bytes(std::int64_t numel) {
    return static_cast<std::size_t>((numel + kBlock - 1) / kBlock);
  }
  // Writes the exponents that this rank would choose alone. All of `arrays` is finite, and begin() has been called if
  // wants_whole().
  virtual void want(const Piece& piece, const kernels::Feedback& arrays, std::byte* exponents) const = 0;
  // Returns true if some rank can have wanted these exponents.
  static bool exponents_valid(std::int64_t numel, const std::byte* exponents);
  // Returns true if the sum of the codes of that many ranks fits into float32 in any case.
  static bool summable(std::int64_t numel, const std::byte* exponents, int ranks);

  // Codes of a piece: the planes of its blocks, one after the other. The residual is exact.
  static std::size_t code_bytes(std::int64_t numel);
  static void encode(std::int64_t numel, const std::byte* exponents, const kernels::Feedback& arrays, std::byte* codes);
  static bool codes_valid(std::int64_t numel, const std::byte* codes);

  // Sums of the valid codes of that many ranks, packed block by block.
  static std::size_t count_bytes(std::int64_t numel, int ranks);
  static void count(std::int64_t numel, std::span<const std::byte* const> codes, std::byte* counts);
  static bool counts_valid(std::int64_t numel, int ranks, const std::byte* counts);
  // Decodes valid counts to numel float32, exact if they are summable.
  static void decode(std::int64_t numel, int ranks, const std::byte* exponents, const std::byte* counts,
                     std::byte* out);
};

}  // namespace sirtaki::compression
