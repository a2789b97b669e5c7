// Expectation: length and fingerprint that both sides of a message must agree on, and the error if they differ.
#pragma once

#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

struct Expectation {
  std::uint64_t length = 0;
  std::uint32_t check = 0;
  bool operator==(const Expectation&) const = default;
};

// Returns kMismatch, as seen by this rank, with `peer` to blame.
Status mismatch_error(Rank peer, const Expectation& here, const Expectation& there);

}  // namespace sirtaki::net
