// Data endpoints: the addresses a rank tells the others to reach it at, as text.
// Plain functions of any thread; they read the host's list of interfaces.
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

// "10.0.0.3:41213" or "[fd00::3]:41213"; nullopt when it is neither.
std::optional<Endpoint> parse_endpoint(const std::string& text);
std::string format_endpoint(const Endpoint& endpoint);

struct EndpointChoice {
  std::string address;          // net.address: comma-separated, used as they are
  std::string interface;        // net.interface: its addresses
  std::string control_address;  // of this host, on the way to the rendezvous server
  std::uint16_t port = 0;       // the data port
};

// The addresses behind data_endpoints(), without the port.
Result<std::vector<std::string>> data_addresses(const EndpointChoice& choice);

// Best first. Without an override: the address the control connection leaves this host from. An interface that does
// not exist or has no address is kInvalidArgument naming those that do.
Result<std::vector<std::string>> data_endpoints(const EndpointChoice& choice);

}  // namespace sirtaki::net
