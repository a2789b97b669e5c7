#include "launcher/discovery.h"

#include <signal.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>

#include "launcher/process/processes.h"
#include "launcher/process/spawn.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki::launcher {

using boost::system::error_code;

namespace {

constexpr std::size_t kMostText = std::size_t{1} << 20;

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
  spec.death_signal = SIGKILL;
  Result<ChildProcess> child = spawn(spec, nullptr);
  if (!child) {
    return report(child.status());
  }
  run_ = std::make_shared<Run>();
  run_->pid = child->pid;
  std::size_t which = 0;
  for (FileDescriptor* fd : {&child->out, &child->err}) {
    Output& output = run_->outputs.at(which);
    output.in = std::make_unique<boost::asio::posix::stream_descriptor>(io_, fd->release());
    output.in->non_blocking(true);
    read(run_, which++);
  }
  timer_.expires_after(options_.patience);
  timer_.async_wait([this](const error_code& error) {
    if (!error) {
      on_late();
    }
  });
}

void Discovery::stop() {
  stopped_ = true;
  timer_.cancel();
  if (run_) {
    kill(-run_->pid, SIGKILL);
  }
}

// Reads only when there is data, so that no byte is on its way when the script ends.
void Discovery::read(const std::shared_ptr<Run>& run, std::size_t which) {
  boost::asio::posix::stream_descriptor& in = *run->outputs.at(which).in;
  in.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this, run, which](const error_code& error) {
    if (!error && drain(run->outputs.at(which))) {
      read(run, which);
    }
  });
}

// Returns whether more may come.
bool Discovery::drain(Output& output) {
  std::array<char, 4096> buffer;
  error_code error;
  while (!error && output.in->is_open() && output.text.size() < kMostText) {
    output.text.append(buffer.data(), output.in->read_some(boost::asio::buffer(buffer), error));
  }
  return output.in->is_open() && (error == boost::asio::error::would_block || error == boost::asio::error::try_again);
}

// The script is the leader of a session of its own, so this ends the processes that it has started, too.
void Discovery::on_late() {
  if (run_ && !stopped_) {
    run_->late = true;
    kill(-run_->pid, SIGKILL);
  }
}

void Discovery::on_child_exit(pid_t pid, int wait_status) {
  if (!run_ || pid != run_->pid) {
    return;
  }
  const std::shared_ptr<Run> run = std::exchange(run_, nullptr);
  for (Output& output : run->outputs) {
    drain(output);  // all that the script has written is in the pipe by now
    error_code ignored;
    output.in->close(ignored);
  }
  if (!stopped_) {
    report(result_of(*run, wait_status));
  }
}

Result<std::vector<Host>> Discovery::result_of(const Run& run, int wait_status) const {
  if (run.late) {
    return unavailable("it has not ended within " + format_duration(options_.patience));
  }
  if (wait_status != 0) {
    const std::string text = last_line(run.outputs[1].text);
    return unavailable(describe_wait_status(wait_status) + (text.empty() ? "" : ": " + text));
  }
  if (run.outputs[0].text.size() >= kMostText) {
    return invalid_argument("it has printed more than 1 MiB");
  }
  return parse_discovered(run.outputs[0].text, options_.slots);
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
