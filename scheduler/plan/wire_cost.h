// Cost of payloads on the network, by reduction.
//
// Plans, the planner and the credit count in these bytes, and policies choose a reduction by them.
// docs/compression/wire.md has the formulas of the collectives. Pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/codec_id.h"

namespace sirtaki::scheduler {

// The payload of a tensor as one rank encodes it, the bytes of its elements, and the bytes of a preceding reduction in
// which ranks agree on the content of the payload.
struct Payload {
  std::int64_t bytes = 0;
  std::int64_t held_bytes = 0;
  std::int64_t agreed_bytes = 0;
};

// Returns the size of the allreduce in which a rank sends as many bytes: 2(P-1)/P of that size. A gather sends the
// payload to each of P-1 others, a scatter 2(P-1)/P of it; counts return with more bits than codes have. A ring payload
// grows by the elements of other ranks (for disjoint supports), but never beyond the dense size: (sum over h of min(h
// m, n) + (P-1) min(P m, n)) / P bytes, h from 1 to P-1, payload m, elements n. Rounded up. A single rank sends nothing
// and gets the payload size.
std::int64_t dense_equivalent(ReductionKind reduction, const Payload& payload, int ranks);

// Returns the number of exchanges, one behind the other, in each of which a rank waits for messages of other ranks.
// Gather is one all-to-all, dense and scatter are two; counts have one more for the agreement, which is small; shared
// and lowrank are two allreduces; a ring has P-1 hops between its two. An allreduce counts as two, though a small one
// is one.
std::int64_t exchanges_of(ReductionKind reduction, int ranks);

// Returns true for reductions that consist of allreduces, each no larger than the payload, which go one way or another
// by their size.
bool consists_of_allreduces(ReductionKind reduction);

// Returns the bytes that leave a rank in a dense allreduce of `payload` bytes in two exchanges.
double link_bytes(std::int64_t payload, int ranks);

// Measurements of the link of one rank.
struct LinkFacts {
  std::int64_t latency_ns = 0;        // one exchange, whose messages travel together
  std::int64_t bytes_per_second = 0;  // one way
};

// The reduction of a tensor or partition, and its dense_equivalent().
struct Exchange {
  ReductionKind reduction = ReductionKind::kDense;
  std::int64_t wire_bytes = 0;
};

// Returns the duration of a reduction that is alone on a link: that of its bytes, and a latency for each exchange.
std::int64_t exchange_ns(const Exchange& exchange, int ranks, const LinkFacts& link);

// Returns the largest allreduce for which every rank should send all data to every other rank: one latency less than a
// reduce-scatter and an allgather, but more bytes over the link of a host. One rank on each of two hosts sends no more.
std::int64_t most_in_one_exchange(int hosts, int ranks_per_host, const LinkFacts& link);

}  // namespace sirtaki::scheduler
