// Host facts: an agent's description of its machine, and routes to addresses.
//
// Reads the system; name resolution and probes block (probes for at most the given time). Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki::launcher {

std::string library_version();                    // "0.1.0"
int usable_cores();                               // cores this process may use at one time; at least 1
std::string simd_name();                          // "avx512", "avx2", "sse4", "neon", "baseline"
std::vector<NetworkAddress> network_addresses();  // addresses of interfaces that are up, without loopback

// Returns the introduction of an agent, made from the machine and `environment`.
Hello describe_host(const Environment& environment);

// Returns whether `name` (with or without "user@") is this machine: localhost, its host name, or one of its addresses.
bool is_this_host(const std::string& name);

// Returns the local address from which packets to `host` leave; empty if `host` cannot be resolved or has no route.
std::string address_towards(const std::string& host);

// First argument of a sirtakirun that prints route_to() of its second argument, so that the caller need not wait for
// it.
inline constexpr const char* kRouteTo = "--route-to";
inline constexpr const char* kRouteHere = "here";
// Returns kRouteHere for a name of this machine, else address_towards() of the host.
std::string route_to(const std::string& host);

std::string make_endpoint(const std::string& address, std::uint16_t port);  // IPv6 in brackets
// Tries the endpoints in order, all within `timeout_ms`.
Probed probe_endpoints(const Probe& probe);

}  // namespace sirtaki::launcher
