// Host facts: what an agent says of its machine, and which addresses lead where.
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
int usable_cores();                               // this process may use at one time; at least 1
std::string simd_name();                          // "avx512", "avx2", "sse4", "neon", "baseline"
std::vector<NetworkAddress> network_addresses();  // of interfaces that are up, loopback left out

// The agent's introduction, from the machine and `environment`.
Hello describe_host(const Environment& environment);

// Whether `name` (with or without "user@") is this machine: localhost, its host name, or an address of its own.
bool is_this_host(const std::string& name);

// Local address from which packets to `host` leave; empty when it cannot be resolved or no route leads there.
std::string address_towards(const std::string& host);

std::string make_endpoint(const std::string& address, std::uint16_t port);  // IPv6 in brackets
// Tries the endpoints in order, all within `timeout_ms`.
Probed probe_endpoints(const Probe& probe);

}  // namespace sirtaki::launcher
