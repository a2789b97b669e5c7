// Check: formats the page that `sirtakirun --check` prints. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "launcher/hosts/hosts.h"
#include "runtime/base/config/config.h"

namespace sirtaki::launcher {

struct CheckedHost {
  Placement placement;
  Hello hello;
  std::string endpoint;  // endpoint at which its ranks would find the coordinator
  std::string error;     // empty: the host passed all checks
};

// With `all_options`, options that have their defaults are listed, too.
std::string check_page(const std::vector<CheckedHost>& hosts, const Config& config, bool all_options);
// Returns the last line of the page.
std::string check_verdict(std::size_t failed_hosts, std::size_t hosts);

}  // namespace sirtaki::launcher
