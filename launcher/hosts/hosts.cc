#include "launcher/hosts/hosts.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace sirtaki::launcher {

namespace {

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::optional<int> parse_int(std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return std::nullopt;
  }
  return value;
}

Status bad_entry(std::string_view entry, std::string_view why) {
  return invalid_argument("host '" + std::string(entry) + "': " + std::string(why));
}

Status bad_slots(std::string_view entry, std::string_view slots) {
  return bad_entry(entry, "'" + std::string(slots) + "' is not a number of slots (1 to " + std::to_string(kMaxSlots) +
                              "); write name:slots, for example node1:4");
}

Status check_name(std::string_view name, std::string_view entry) {
  if (name.empty()) {
    return bad_entry(entry, "a host name is missing; write name:slots, for example node1:4");
  }
  // A name that starts with a dash would reach ssh as an option.
  const bool odd = std::any_of(name.begin(), name.end(), [](char c) {
    return c <= ' ' || c == '\x7f' || c == '"' || c == '\'' || c == '\\' || c == '$' || c == '`' || c == ';' ||
           c == '[';
  });
  if (name.front() == '-' || odd) {
    return bad_entry(entry, "this is no host name");
  }
  return Status();
}

// Parses "[fd00::2]:4" from its opening bracket at `open`, which may follow "user@".
Result<Host> parse_bracketed(std::string_view entry, std::size_t open) {
  const std::size_t close = entry.find(']', open);
  if (close == std::string_view::npos) {
    return bad_entry(entry, "the closing ']' is missing; write [address]:slots");
  }
  Host host;
  host.name = std::string(entry.substr(0, open)) + std::string(entry.substr(open + 1, close - open - 1));
  SRT_TRY(check_name(host.name, entry));
  const std::string_view rest = entry.substr(close + 1);
  if (rest.empty()) {
    return host;
  }
  const auto slots = rest.front() == ':' ? parse_int(rest.substr(1), 1, kMaxSlots) : std::nullopt;
  if (!slots) {
    return bad_slots(entry, rest.front() == ':' ? rest.substr(1) : rest);
  }
  host.slots = *slots;
  return host;
}

Result<Host> parse_entry(std::string_view entry) {
  if (const std::size_t open = entry.find('['); open != std::string_view::npos) {
    return parse_bracketed(entry, open);
  }
  const std::size_t colon = entry.find(':');
  if (colon != entry.rfind(':')) {
    return bad_entry(entry, "put an IPv6 address in brackets: [" + std::string(entry) + "]:slots");
  }
  Host host;
  host.name = entry.substr(0, colon);
  SRT_TRY(check_name(host.name, entry));
  if (colon != std::string_view::npos) {
    const auto slots = parse_int(entry.substr(colon + 1), 1, kMaxSlots);
    if (!slots) {
      return bad_slots(entry, entry.substr(colon + 1));
    }
    host.slots = *slots;
  }
  return host;
}

void add_host(std::vector<Host>& hosts, Host host) {
  const auto same =
      std::find_if(hosts.begin(), hosts.end(), [&](const Host& other) { return other.name == host.name; });
  if (same == hosts.end()) {
    hosts.push_back(std::move(host));
  } else {
    same->slots = std::min(kMaxSlots, same->slots + host.slots);
  }
}

// Parses one line of a hostfile without its comment.
Result<Host> parse_line(std::string_view line) {
  const std::size_t space = line.find_first_of(" \t");
  SRT_ASSIGN(Host host, parse_entry(line.substr(0, space)));
  if (space == std::string_view::npos) {
    return host;
  }
  const std::string_view rest = trim(line.substr(space));
  constexpr std::string_view kKey = "slots";
  std::string_view value;
  if (rest.substr(0, kKey.size()) == kKey) {
    value = trim(rest.substr(kKey.size()));
  }
  if (value.empty() || value.front() != '=') {
    return bad_entry(line, "'" + std::string(rest) + "' is not understood; write name slots=N");
  }
  const auto slots = parse_int(trim(value.substr(1)), 1, kMaxSlots);
  if (!slots) {
    return bad_slots(line, trim(value.substr(1)));
  }
  host.slots = *slots;
  return host;
}

std::string describe(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += (text.empty() ? "" : ", ") + host.name + ":" + std::to_string(host.slots);
  }
  return text;
}

}  // namespace

Result<std::vector<Host>> parse_host_list(std::string_view text) {
  std::vector<Host> hosts;
  while (true) {
    const std::size_t comma = text.find(',');
    SRT_ASSIGN(Host host, parse_entry(trim(text.substr(0, comma))));
    add_host(hosts, std::move(host));
    if (comma == std::string_view::npos) {
      return hosts;
    }
    text.remove_prefix(comma + 1);
  }
}

Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view path) {
  std::vector<Host> hosts;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) {
      continue;
    }
    Result<Host> host = parse_line(line);
    if (!host) {
      return host.status().with_context(std::string(path) + ":" + std::to_string(number));
    }
    add_host(hosts, std::move(*host));
  }
  if (hosts.empty()) {
    return invalid_argument(std::string(path) + ": no host in this file; write one line 'name slots=N' for each host");
  }
  return hosts;
}

Result<std::vector<Placement>> place_ranks(const std::vector<Host>& hosts, std::optional<int> np,
                                           const std::function<bool(const std::string&)>& is_local,
                                           const PlaceOptions& options) {
  const int most = options.most;
  if (np && *np < 1) {
    return invalid_argument("-np " + std::to_string(*np) + ": at least one rank is needed");
  }
  if (hosts.empty()) {
    if (!np) {
      return invalid_argument(
          "the number of ranks is not given; write -np N, or name the hosts with -H host:slots,... or --hostfile FILE");
    }
    return std::vector<Placement>{{"localhost", true, 0, *np, std::max(*np, most)}};
  }
  long total = 0;
  for (const Host& host : hosts) {
    total += host.slots;
  }
  const long wanted = np ? *np : most > 0 ? std::min<long>(most, total) : total;
  if (wanted > total) {
    return invalid_argument("-np " + std::to_string(wanted) + " needs " + std::to_string(wanted) +
                            " slots, but the hosts offer " + std::to_string(total) + " (" + describe(hosts) +
                            "); give them more slots or start fewer ranks");
  }
  std::vector<Host> merged;
  std::string local_name;
  std::map<std::string, bool> locals;  // an answer may take long, because it resolves the name
  for (const Host& host : hosts) {
    const bool local = locals[host.name] = is_local(host.name);
    if (local && local_name.empty()) {
      local_name = host.name;
    }
    add_host(merged, {local && !options.apart ? local_name : host.name, host.slots});
  }
  std::vector<Placement> placements;
  int rank = 0;
  long later = most - wanted;
  for (const Host& host : merged) {
    const int ranks = static_cast<int>(std::min<long>(host.slots, wanted - rank));
    if (ranks > 0 || later > 0) {
      placements.push_back({host.name, locals.at(host.name), rank, ranks, host.slots});
      rank += ranks;
      later -= host.slots - ranks;
    }
  }
  return placements;
}

void add_spare_slots(std::vector<Placement>& placements, int slots) {
  long present = 0;
  for (const Placement& placement : placements) {
    present += placement.slots;
  }
  for (; present < slots; ++present) {
    Placement& least = *std::ranges::min_element(placements, {}, &Placement::slots);
    ++least.slots;
    ++least.spare_slots;
  }
}

std::vector<RankNumbers> rank_numbers(const std::vector<std::string>& hosts) {
  std::map<std::string, int> on_host;
  std::map<int, int> with_local_rank;
  std::vector<RankNumbers> numbers;
  for (const std::string& host : hosts) {
    RankNumbers own;
    own.local_rank = on_host[host]++;
    own.cross_rank = with_local_rank[own.local_rank]++;
    numbers.push_back(own);
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i].local_size = on_host[hosts[i]];
    numbers[i].cross_size = with_local_rank[numbers[i].local_rank];
  }
  return numbers;
}

RankNumbers numbers_beside(const std::vector<std::pair<std::string, RankNumbers>>& others, const std::string& host) {
  RankNumbers own;
  const auto taken = [&](const auto& other) {
    return other.first == host && other.second.local_rank == own.local_rank;
  };
  while (std::any_of(others.begin(), others.end(), taken)) {
    ++own.local_rank;
  }
  for (const auto& [name, other] : others) {
    own.local_size += name == host ? 1 : 0;
    own.cross_rank += name != host && other.local_rank == own.local_rank ? 1 : 0;
  }
  own.local_size = std::max(own.local_size, own.local_rank + 1);
  own.cross_size = own.cross_rank + 1;
  return own;
}

int omp_threads(int cores, int ranks) {
  return ranks < 1 ? std::max(1, cores) : std::max(1, cores / ranks);
}

}  // namespace sirtaki::launcher
