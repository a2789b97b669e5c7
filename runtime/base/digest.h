// Digests of 64 bits, by which ranks compare models, options, plans, profiles and decisions.
//
// Pure functions; any thread. A digest does not protect against an adversary.
#pragma once

#include <cstdint>

#include "runtime/base/types.h"

namespace sirtaki {

// Returns the XXH64 of the bytes. To digest several pieces, pass the digest of one as the seed of the next.
std::uint64_t digest_of(ConstBytes bytes, std::uint64_t seed = 0);

}  // namespace sirtaki
