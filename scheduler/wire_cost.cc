#include "scheduler/wire_cost.h"

#include <algorithm>
#include <bit>

#include "scheduler/arith.h"

namespace sirtaki::scheduler {
namespace {

std::int64_t part_of(std::int64_t bytes, std::int64_t numerator, std::int64_t denominator) {
  return static_cast<std::int64_t>((Wide{bytes} * numerator + denominator - 1) / denominator);
}

}  // namespace

std::int64_t dense_equivalent(Recipe recipe, const Payload& payload, int ranks) {
  if (ranks < 2) {
    return payload.bytes;
  }
  switch (recipe) {
    case Recipe::kGather:
      return part_of(payload.bytes, ranks, 2);
    case Recipe::kCounts:
      // A code has 2 bits, a count one of 2P + 1 values.
      return part_of(payload.bytes, 2 + std::bit_width(2U * static_cast<unsigned>(ranks)), 4);
    case Recipe::kRing:
      return std::min(part_of(payload.bytes, 3 * std::int64_t{ranks}, 4), payload.held_bytes);
    case Recipe::kDense:
    case Recipe::kScatter:
    case Recipe::kShared:
    case Recipe::kLowRank:
      break;
  }
  return payload.bytes;
}

}  // namespace sirtaki::scheduler
