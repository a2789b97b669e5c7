// Digest: 64 bits that tell whether two pieces of memory are the same on all ranks. Not against an adversary.
//
// For: what ranks compare: models, options, plans, profiles, decisions. Pure; any thread.
#pragma once

#include <cstdint>

#include "runtime/base/types.h"

namespace sirtaki {

// XXH64. Of several pieces: the digest of those before is the next one's seed.
std::uint64_t digest_of(ConstBytes bytes, std::uint64_t seed = 0);

}  // namespace sirtaki
