#include "launcher/check.h"

#include <algorithm>

namespace sirtaki::launcher {

namespace {

std::string padded(std::string text, std::size_t width) {
  text.append(width > text.size() ? width - text.size() : 0, ' ');
  return text;
}

std::string host_section(const CheckedHost& host) {
  const Placement& place = host.placement;
  std::string out = "  " + place.host + (place.local ? " (this host)" : " (over ssh)") + ": ";
  out += place.ranks == 1
             ? "rank " + std::to_string(place.first_rank)
             : "ranks " + std::to_string(place.first_rank) + "-" + std::to_string(place.first_rank + place.ranks - 1);
  out += "\n";
  if (!host.hello.version.empty()) {
    out += "    host name    " + host.hello.hostname + "\n";
    out += "    version      " + host.hello.version + "\n";
    out += "    cores        " + std::to_string(host.hello.cores) + ", OMP_NUM_THREADS would be " +
           std::to_string(omp_threads(host.hello.cores, place.ranks)) + "\n";
    out += "    SIMD         " + host.hello.simd + "\n";
    for (const NetworkAddress& entry : host.hello.addresses) {
      out += "    address      " + entry.address + " (" + entry.interface + ")\n";
    }
  }
  if (!host.endpoint.empty()) {
    out += "    coordinator  " + host.endpoint + " (reached)\n";
  }
  out += host.error.empty() ? "    ok\n" : "    FAILED: " + host.error + "\n";
  return out;
}

// Options of the process at hand, not of the job.
bool of_one_rank(std::string_view name) {
  return name.starts_with("job.") && name != "job.port_range" && name != "job.host_id";
}

// Lists the options that somebody has set; with `all`, those with their defaults, too.
std::string options_section(const Config& config, bool all) {
  std::vector<const OptionInfo*> listed;
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  for (const OptionInfo& option : option_table()) {
    if (!of_one_rank(option.name) && (all || config.source(option.name) != "default")) {
      listed.push_back(&option);
      name_width = std::max(name_width, option.name.size());
      value_width = std::max(value_width, std::min<std::size_t>(24, get_option(option, config).size()));
    }
  }
  std::string out = listed.empty() ? "Options\n" : "Options (where each comes from)\n";
  for (const OptionInfo* option : listed) {
    const std::string value = get_option(*option, config);
    out += "  " + padded(option->name, name_width) + "  " + padded(value.empty() ? "-" : value, value_width) + "  (" +
           std::string(config.source(option->name)) + ")\n";
  }
  if (!all) {
    out += listed.empty() ? "  all have" : "  all others have";
    out += " their defaults; --verbose lists them\n";
  }
  return out;
}

// Uses the sizes that the ranks will see, unless the system refuses memory.
std::string data_section(const std::vector<CheckedHost>& hosts, const Config& config) {
  int ranks = 0;
  int most = 0;
  std::string counts;
  for (const CheckedHost& host : hosts) {
    ranks += host.placement.ranks;
    most = std::max(most, host.placement.ranks);
    counts += (counts.empty() ? "" : " + ") + std::to_string(host.placement.ranks);
  }
  const bool direct = config.net.backend == "direct";
  const bool shares = direct && config.net.shared_memory == "auto" && most > 1;
  std::string transport = "tcp";
  if (hosts.size() == 1) {
    transport = ranks == 1 ? "local" : shares ? "shared memory" : "tcp";
  } else if (direct && config.net.hierarchy == "auto" && most > 1) {
    transport = shares ? "shared memory on a host, tcp between hosts" : "tcp, host by host";
  }
  return "  " + std::to_string(ranks) + " ranks on " + std::to_string(hosts.size()) +
         (hosts.size() == 1 ? " host" : " hosts (" + counts + ")") + ": " + transport + "\n";
}

std::string backends() {
  const OptionInfo* option = find_option("net.backend");
  std::string names(option != nullptr ? option->accepted : "");
  std::replace(names.begin(), names.end(), '|', ' ');
  return names;
}

}  // namespace

std::string check_page(const std::vector<CheckedHost>& hosts, const Config& config, bool all_options) {
  std::string out = "Hosts\n";
  for (const CheckedHost& host : hosts) {
    out += host_section(host);
  }
  out += "Data\n" + data_section(hosts, config);
  if (hosts.size() == 1) {
    out += "Links between hosts\n  none: all ranks are on one host, so nothing is measured\n";
  }
  out += "Backends\n  " + backends() + "\n";
  return out + options_section(config, all_options);
}

std::string check_verdict(std::size_t failed_hosts, std::size_t hosts) {
  return failed_hosts == 0 ? "All is well.\n"
                           : std::to_string(failed_hosts) + " of " + std::to_string(hosts) + " hosts failed.\n";
}

}  // namespace sirtaki::launcher
