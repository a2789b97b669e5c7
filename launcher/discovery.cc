#include "launcher/discovery.h"

#include <algorithm>
#include <utility>

#include "launcher/process/processes.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki::launcher {

using boost::system::error_code;

namespace {

// Returns the last line that is not empty.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \r\n\t");
  if (end == std::string::npos) {
    return {};
  }
  const std::size_t newline = text.find_last_of('\n', end);
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end + 1 - begin);
}

}  // namespace

Result<std::vector<Host>> parse_discovered(std::string_view text, int slots) {
  std::vector<Host> hosts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) {
      continue;
    }
    line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
    if (line.find(',') != std::string_view::npos) {
      return invalid_argument("host '" + std::string(line) + "': print one host a line");
    }
    SRT_ASSIGN(const std::vector<Host> named, parse_host_list(line));
    Host host = named.front();
    const bool bracketed = line.find(']') != std::string_view::npos;
    const bool numbered = line.find(':', bracketed ? line.find(']') : 0) != std::string_view::npos;
    host.slots = numbered ? host.slots : slots;
    const auto same = std::ranges::find(hosts, host.name, &Host::name);
    if (same == hosts.end()) {
      hosts.push_back(host);
    } else if (same->slots != host.slots) {
      return invalid_argument("host '" + host.name + "' is named with " + std::to_string(same->slots) + " and with " +
                              std::to_string(host.slots) + " slots");
    }
  }
  return hosts;
}

Discovery::Discovery(boost::asio::io_context& io, DiscoveryOptions options, std::vector<std::string> env, Events events)
    : io_(io), options_(std::move(options)), env_(std::move(env)), events_(std::move(events)), timer_(io) {}

void Discovery::start() {
  SpawnSpec spec;
  spec.argv = {"/bin/sh", "-c", options_.script};
  spec.env = env_;
  run_ = std::make_unique<ChildOutput>(io_);
  const Status started = run_->start(std::move(spec), options_.patience, [this](const ChildOutput::End& end) {
    run_.reset();
    report(result_of(end));
  });
  if (!started.ok()) {
    run_.reset();
    report(started);
  }
}

void Discovery::stop() {
  stopped_ = true;
  timer_.cancel();
  run_.reset();
}

void Discovery::on_child_exit(pid_t pid, int wait_status) {
  if (run_) {
    run_->on_child_exit(pid, wait_status);
  }
}

Result<std::vector<Host>> Discovery::result_of(const ChildOutput::End& end) const {
  if (end.late) {
    return unavailable("it has not ended within " + format_duration(options_.patience));
  }
  if (end.wait_status != 0) {
    const std::string text = last_line(end.texts[1]);
    return unavailable(describe_wait_status(end.wait_status) + (text.empty() ? "" : ": " + text));
  }
  if (end.texts[0].size() >= ChildOutput::kMostText) {
    return invalid_argument("it has printed more than 1 MiB");
  }
  return parse_discovered(end.texts[0], options_.slots);
}

void Discovery::report(const Result<std::vector<Host>>& result) {
  timer_.expires_after(options_.interval);
  timer_.async_wait([this](const error_code& error) {
    if (!error && !stopped_) {
      start();
    }
  });
  result ? events_.on_hosts(*result) : events_.on_failed(result.status());
}

}  // namespace sirtaki::launcher
