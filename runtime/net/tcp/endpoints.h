// Data endpoints: the addresses at which other ranks reach this one, as text.
// Plain functions for any thread; they read the list of interfaces of the host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::net {

struct Endpoint {
  std::string address;  // numeric, IPv6 without brackets
  std::uint16_t port = 0;
};

// Parses "10.0.0.3:41213" or "[fd00::3]:41213"; returns nullopt for anything else.
std::optional<Endpoint> parse_endpoint(const std::string& text);
std::string format_endpoint(const Endpoint& endpoint);

struct EndpointChoice {
  std::string address;          // net.address: comma-separated, used unchanged
  std::string interface;        // net.interface: its addresses
  std::string control_address;  // local address of the connection to the rendezvous server
  std::uint16_t port = 0;       // the data port
};

// Returns the addresses of data_endpoints(), without the port.
Result<std::vector<std::string>> data_addresses(const EndpointChoice& choice);

// Returns endpoints, best first. Without an override, the first is the local address of the control connection.
// Returns kInvalidArgument for an interface that does not exist or has no address; the text lists those that do.
Result<std::vector<std::string>> data_endpoints(const EndpointChoice& choice);

}  // namespace sirtaki::net
