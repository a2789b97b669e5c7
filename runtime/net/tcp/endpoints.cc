#include "runtime/net/tcp/endpoints.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

namespace sirtaki::net {
namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;
};

std::optional<std::string> numeric(const sockaddr* address, const std::string& interface) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  }
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    std::string result = inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? result + "%" + interface : result;
  }
  return std::nullopt;
}

std::vector<InterfaceAddress> host_addresses() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    if (auto address = numeric(entry->ifa_addr, entry->ifa_name)) {
      found.push_back({entry->ifa_name, std::move(*address)});
    }
  }
  // A link-local address means something else on every host, so it comes last.
  std::stable_partition(found.begin(), found.end(),
                        [](const auto& entry) { return entry.address.find('%') == std::string::npos; });
  return found;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    std::string part = list.substr(begin, comma - begin);
    const auto first = part.find_first_not_of(' ');
    if (first != std::string::npos) {
      parts.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
    }
    begin = comma + 1;
  }
  return parts;
}

bool is_numeric(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> ignored{};
  const std::string bare = address.substr(0, address.find('%'));
  return inet_pton(AF_INET, address.c_str(), ignored.data()) == 1 ||
         inet_pton(AF_INET6, bare.c_str(), ignored.data()) == 1;
}

Result<std::vector<std::string>> addresses_of(const std::string& interface) {
  const auto all = host_addresses();
  std::vector<std::string> chosen;
  std::string names;
  for (const auto& entry : all) {
    if (entry.interface == interface) {
      chosen.push_back(entry.address);
    } else if ((" " + names).find(" " + entry.interface + " ") == std::string::npos) {
      names += entry.interface + " ";
    }
  }
  if (chosen.empty()) {
    return invalid_argument("net.interface: '" + interface +
                            "' is no interface of this host with an address; there are: " + names);
  }
  return chosen;
}

}  // namespace

Result<std::vector<std::string>> data_addresses(const EndpointChoice& choice) {
  if (!choice.address.empty()) {
    std::vector<std::string> listed = split(choice.address);
    for (const std::string& address : listed) {
      if (!is_numeric(address)) {
        return invalid_argument("net.address: '" + address + "' is not an IP address");
      }
    }
    return listed;
  }
  if (!choice.interface.empty()) {
    return addresses_of(choice.interface);
  }
  if (!is_numeric(choice.control_address)) {
    return invalid_argument("'" + choice.control_address + "' is not the IP address of a control connection");
  }
  return std::vector<std::string>{choice.control_address};
}

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    return std::nullopt;
  }
  Endpoint endpoint;
  endpoint.address = text.substr(0, colon);
  const bool bracketed = endpoint.address.front() == '[' && endpoint.address.back() == ']';
  if (bracketed) {
    endpoint.address = endpoint.address.substr(1, endpoint.address.size() - 2);
  }
  if (!is_numeric(endpoint.address) || bracketed != (endpoint.address.find(':') != std::string::npos)) {
    return std::nullopt;
  }
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, endpoint.port);
  if (error != std::errc() || end != last || endpoint.port == 0) {
    return std::nullopt;
  }
  return endpoint;
}

std::string format_endpoint(const Endpoint& endpoint) {
  const bool v6 = endpoint.address.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.address + "]" : endpoint.address) + ":" + std::to_string(endpoint.port);
}

Result<std::vector<std::string>> data_endpoints(const EndpointChoice& choice) {
  SRT_ASSIGN(const std::vector<std::string> chosen, data_addresses(choice));
  std::vector<std::string> endpoints;
  for (const std::string& address : chosen) {
    endpoints.push_back(format_endpoint({address, choice.port}));
  }
  return endpoints;
}

}  // namespace sirtaki::net
