// What payloads cost the network, by recipe.
//
// For: the bytes that plans, the planner and the credit count with; and policies that choose a recipe. Formulas of
// collectives: docs/compression.md. Pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/codec_id.h"

namespace sirtaki::scheduler {

// A tensor's payload as one rank encodes it, and what its elements take as they are held.
struct Payload {
  std::int64_t bytes = 0;
  std::int64_t held_bytes = 0;
};

// The size of the allreduce in which a rank sends as much: 2(P-1)/P of it. A gather sends the payload to each of P-1
// others, a scatter 2(P-1)/P of it, counts come back with more bits than codes have, what goes round a ring grows by
// what others add (for supports that have nothing in common), and no longer than the elements. Rounded up; of one rank,
// which sends nothing: the payload.
std::int64_t dense_equivalent(Recipe recipe, const Payload& payload, int ranks);

}  // namespace sirtaki::scheduler
