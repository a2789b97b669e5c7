// What one side of a message expects of the other, and the error when they differ.
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

// kMismatch on this rank, blaming `peer`.
Status mismatch_error(Rank peer, const Expectation& here, const Expectation& there);

}  // namespace sirtaki::net
