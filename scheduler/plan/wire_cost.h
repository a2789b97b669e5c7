// What payloads cost the network, by reduction.
//
// For: the bytes that plans, the planner and the credit count with; and policies that choose a reduction. Formulas of
// collectives: docs/compression/wire.md. Pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/codec_id.h"

namespace sirtaki::scheduler {

// A tensor's payload as one rank encodes it, what its elements take as they are held, and what ranks reduce first, to
// agree on what travels.
struct Payload {
  std::int64_t bytes = 0;
  std::int64_t held_bytes = 0;
  std::int64_t agreed_bytes = 0;
};

// The size of the allreduce in which a rank sends as much: 2(P-1)/P of it. A gather sends the payload to each of P-1
// others, a scatter 2(P-1)/P of it, counts come back with more bits than codes have. What goes round a ring grows by
// what others add (for supports that have nothing in common), but is never longer than the elements: (sum over h of
// min(h m, n) + (P-1) min(P m, n)) / P bytes, h from 1 to P-1, payload m, elements n. Rounded up; of one rank, which
// sends nothing: the payload.
std::int64_t dense_equivalent(ReductionKind reduction, const Payload& payload, int ranks);

// What is known of the network; of a rank's own link.
struct LinkFacts {
  std::int64_t latency_ns = 0;        // of one message
  std::int64_t bytes_per_second = 0;  // one way
};

// A tensor or partition on its way: its reduction, and its dense_equivalent().
struct Exchange {
  ReductionKind reduction = ReductionKind::kDense;
  std::int64_t wire_bytes = 0;
};

// How long it takes alone on a link: its bytes, and the latency of the messages that a rank sends one behind the other,
// P-1 in an all-to-all. Gather is one, dense and scatter are two; shared, lowrank and counts have two more, for what
// ranks agree on; a ring is two, with P-1 hops between.
std::int64_t exchange_ns(const Exchange& exchange, int ranks, const LinkFacts& link);

}  // namespace sirtaki::scheduler
