#include "scheduler/plan/wire_cost.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {
namespace {

std::int64_t part_of(std::int64_t bytes, std::int64_t numerator, std::int64_t denominator) {
  return static_cast<std::int64_t>((Wide{bytes} * numerator + denominator - 1) / denominator);
}

std::int64_t ring(const Payload& payload, std::int64_t ranks) {
  const Wide held = payload.held_bytes;
  // Number of hops on which the payload is sparse.
  const std::int64_t sparse = std::min(ranks - 1, payload.held_bytes / std::max<std::int64_t>(payload.bytes, 1));
  const Wide hops = Wide{payload.bytes} * sparse * (sparse + 1) / 2 + held * (ranks - 1 - sparse);
  const Wide end = std::min(Wide{payload.bytes} * ranks, held) * (ranks - 1);
  const Wide twice = 2 * (ranks - 1);
  return static_cast<std::int64_t>((hops + end + twice - 1) / twice);
}

}  // namespace

std::int64_t exchanges_of(ReductionKind reduction, int ranks) {
  switch (reduction) {
    case ReductionKind::kGather:
      return 1;
    case ReductionKind::kDense:
    case ReductionKind::kScatter:
      return 2;
    case ReductionKind::kRing:
      return ranks + 1;
    case ReductionKind::kCounts:
      return 3;
    case ReductionKind::kShared:
    case ReductionKind::kLowRank:
      break;
  }
  return 4;
}

std::int64_t dense_equivalent(ReductionKind reduction, const Payload& payload, int ranks) {
  if (ranks < 2) {
    return payload.bytes;
  }
  switch (reduction) {
    case ReductionKind::kGather:
      return part_of(payload.bytes, ranks, 2);
    case ReductionKind::kCounts:
      // A code has 2 bits, a count one of 2P + 1 values.
      return payload.agreed_bytes + part_of(payload.bytes, 2 + std::bit_width(2U * static_cast<unsigned>(ranks)), 4);
    case ReductionKind::kRing:
      return ring(payload, ranks);
    case ReductionKind::kDense:
    case ReductionKind::kScatter:
    case ReductionKind::kShared:
    case ReductionKind::kLowRank:
      break;
  }
  return payload.agreed_bytes + payload.bytes;
}

bool consists_of_allreduces(ReductionKind reduction) {
  return reduction == ReductionKind::kDense || reduction == ReductionKind::kShared ||
         reduction == ReductionKind::kLowRank;
}

double link_bytes(std::int64_t payload, int ranks) {
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(payload);
}

std::int64_t exchange_ns(const Exchange& exchange, int ranks, const LinkFacts& link) {
  const Wide latency = ranks < 2 ? Wide{0} : Wide{exchanges_of(exchange.reduction, ranks)} * link.latency_ns;
  const Wide wire = Wide{2} * (ranks - 1) * exchange.wire_bytes * kNsPerSecond /
                    (Wide{ranks} * std::max<std::int64_t>(link.bytes_per_second, 1));
  return static_cast<std::int64_t>(std::min(latency + wire, Wide{std::numeric_limits<std::int64_t>::max()}));
}

// A host of a ranks sends a * a * (h - 1) times the data in one exchange, 2 (h - 1) / h times in two. The messages of
// an exchange travel together, so two exchanges take one latency more, whatever the number of hosts.
std::int64_t most_in_one_exchange(int hosts, int ranks_per_host, const LinkFacts& link) {
  const Wide excess = (Wide{ranks_per_host} * ranks_per_host * hosts - 2) * (hosts - 1);
  if (excess <= 0) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const Wide bytes = Wide{link.latency_ns} * link.bytes_per_second * hosts / (kNsPerSecond * excess);
  return static_cast<std::int64_t>(std::min(bytes, Wide{std::numeric_limits<std::int64_t>::max()}));
}

}  // namespace sirtaki::scheduler
