// HostOffer: the introduction of a host that joins a job, within the handshake. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct HostOffer {
  std::string name;        // its host name; letters, digits, '.', '-' and '_'
  std::int32_t slots = 1;  // ranks that it takes
};

// Cuts the name to 64 bytes, and puts '_' for characters that a host name does not have.
std::vector<std::byte> encode(const HostOffer& offer);
// Returns kCorrupt when the bytes are not exactly one offer with a name and at least one slot.
Result<HostOffer> decode_host_offer(ConstBytes bytes);

// Returns a name for a host that joins: its own, or "name#2" and so on while `is_taken` returns true.
std::string free_host_name(const std::string& name, const std::function<bool(const std::string&)>& is_taken);

}  // namespace sirtaki::launcher
