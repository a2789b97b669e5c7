#include "compression/counted_codes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/half/elements.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kBlock = CountedCodes::kBlock;

using Exponent = kernels::ref::Plain<std::int8_t>;

// Calls body(block, first, elements) for every block of a piece.
template <class Body>
void for_each_numbered_block(std::int64_t numel, Body body) {
  for (std::int64_t first = 0; first < numel; first += kBlock) {
    body(static_cast<std::size_t>(first / kBlock), first, std::min(kBlock, numel - first));
  }
}

// Positions of the planes and of the packed counts of block number `block`; the blocks before it are whole.
std::size_t codes_at(std::size_t block) {
  return block * kernels::twobit_bytes(kBlock);
}
std::size_t counts_at(std::size_t block, int ranks) {
  return block * kernels::twobit_packed_bytes(ranks, kBlock);
}
std::size_t whole_blocks(std::int64_t numel) {
  return static_cast<std::size_t>(numel / kBlock);
}

}  // namespace

bool CountedCodes::exponents_valid(std::int64_t numel, const std::byte* exponents) {
  bool valid = true;
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t /*first*/, std::int64_t /*elements*/) {
    valid = valid && Exponent::load(exponents + block) >= kLeastExponent;
  });
  return valid;
}

bool CountedCodes::summable(std::int64_t numel, const std::byte* exponents, int ranks) {
  bool finite = true;
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t /*first*/, std::int64_t /*elements*/) {
    finite = finite && std::isfinite(std::ldexp(static_cast<float>(ranks), Exponent::load(exponents + block)));
  });
  return finite;
}

std::size_t CountedCodes::code_bytes(std::int64_t numel) {
  return codes_at(whole_blocks(numel)) + kernels::twobit_bytes(numel % kBlock);
}

void CountedCodes::encode(std::int64_t numel, const std::byte* exponents, const kernels::Feedback& arrays,
                          std::byte* codes) {
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t first, std::int64_t elements) {
    kernels::twobit_encode(Exponent::load(exponents + block), elements, arrays.from(first), codes + codes_at(block));
  });
}

bool CountedCodes::codes_valid(std::int64_t numel, const std::byte* codes) {
  bool valid = true;
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t /*first*/, std::int64_t elements) {
    valid = valid && kernels::twobit_valid(elements, codes + codes_at(block));
  });
  return valid;
}

std::size_t CountedCodes::count_bytes(std::int64_t numel, int ranks) {
  return counts_at(whole_blocks(numel), ranks) + kernels::twobit_packed_bytes(ranks, numel % kBlock);
}

void CountedCodes::count(std::int64_t numel, std::span<const std::byte* const> codes, std::byte* counts) {
  const auto ranks = static_cast<int>(codes.size());
  std::vector<const std::byte*> planes(codes.size());
  std::byte sums[kBlock];
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t /*first*/, std::int64_t elements) {
    std::transform(codes.begin(), codes.end(), planes.begin(),
                   [block](const std::byte* one) { return one + codes_at(block); });
    kernels::twobit_count(planes, elements, sums);
    kernels::twobit_pack_counts(ranks, elements, sums, counts + counts_at(block, ranks));
  });
}

bool CountedCodes::counts_valid(std::int64_t numel, int ranks, const std::byte* counts) {
  bool valid = true;
  std::byte sums[kBlock];
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t /*first*/, std::int64_t elements) {
    valid = valid && kernels::twobit_unpack_counts(ranks, elements, counts + counts_at(block, ranks), sums);
  });
  return valid;
}

void CountedCodes::decode(std::int64_t numel, int ranks, const std::byte* exponents, const std::byte* counts,
                          std::byte* out) {
  std::byte sums[kBlock];
  for_each_numbered_block(numel, [&](std::size_t block, std::int64_t first, std::int64_t elements) {
    kernels::twobit_unpack_counts(ranks, elements, counts + counts_at(block, ranks), sums);
    kernels::twobit_from_counts(Exponent::load(exponents + block), elements, sums,
                                out + static_cast<std::size_t>(first) * sizeof(float));
  });
}

}  // namespace sirtaki::compression
