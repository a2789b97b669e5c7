#include "launcher/process/handlers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace sirtaki::launcher {

namespace {

bool holds(std::uint64_t mask, int signal_number) {
  return signal_number >= 1 && signal_number <= 64 && ((mask >> (signal_number - 1)) & 1U) != 0;
}

std::optional<std::uint64_t> mask_of(std::string_view status, std::string_view field) {
  const std::size_t at = status.find(field);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view text = status.substr(at + field.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t mask = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mask, 16);
  return error == std::errc() ? std::optional(mask) : std::nullopt;
}

std::string link_target(const std::string& path) {
  std::array<char, 4096> target{};
  const ssize_t size = readlink(path.c_str(), target.data(), target.size());
  return size > 0 ? std::string(target.data(), static_cast<std::size_t>(size)) : std::string();
}

const SessionProcess* find(const std::vector<SessionProcess>& processes, pid_t pid) {
  const auto found = std::ranges::find(processes, pid, &SessionProcess::pid);
  return found == processes.end() ? nullptr : &*found;
}

bool same_program(const SessionProcess& a, const SessionProcess& b) {
  return !a.program.empty() && a.program == b.program;
}

// Returns the only child that is not a copy of its parent; nullptr when there is none, or more than one.
const SessionProcess* only_child(const std::vector<SessionProcess>& processes, const SessionProcess& parent) {
  const SessionProcess* child = nullptr;
  for (const SessionProcess& one : processes) {
    if (one.parent != parent.pid || (same_program(one, parent) && one.command == parent.command)) {
      continue;
    }
    if (child != nullptr) {
      return nullptr;
    }
    child = &one;
  }
  return child;
}

}  // namespace

bool SignalMasks::handles(int signal_number) const {
  return holds(caught, signal_number) || (holds(blocked, signal_number) && !holds(ignored, signal_number));
}

bool SignalMasks::survives(int signal_number) const {
  return handles(signal_number) || holds(ignored, signal_number);
}

std::optional<SignalMasks> parse_signal_masks(std::string_view status) {
  const auto blocked = mask_of(status, "\nSigBlk:");
  const auto ignored = mask_of(status, "\nSigIgn:");
  const auto caught = mask_of(status, "\nSigCgt:");
  if (!blocked || !ignored || !caught) {
    return std::nullopt;
  }
  return SignalMasks{*blocked, *ignored, *caught};
}

std::vector<SessionProcess> session_processes(const std::vector<ProcessInfo>& all, pid_t session) {
  std::vector<SessionProcess> found;
  for (const ProcessInfo& info : all) {
    if (info.session != session) {
      continue;
    }
    const std::string folder = "/proc/" + std::to_string(info.pid);
    const auto masks = parse_signal_masks(read_proc_file(folder + "/status"));
    found.push_back({info.pid, info.parent, link_target(folder + "/exe"), read_proc_file(folder + "/cmdline"),
                     masks.value_or(SignalMasks{})});
  }
  return found;
}

std::optional<pid_t> find_handler(const std::vector<SessionProcess>& processes, pid_t rank, int signal_number,
                                  bool survives) {
  const SessionProcess* process = find(processes, rank);
  // Parents may form a cycle if the listing was made while processes came and went; no real chain is longer than the
  // list.
  for (std::size_t steps = 0; process != nullptr && steps <= processes.size(); ++steps) {
    const bool ready = survives ? process->masks.survives(signal_number) : process->masks.handles(signal_number);
    if (ready) {
      return process->pid;
    }
    process = only_child(processes, *process);
  }
  return std::nullopt;
}

std::vector<pid_t> sigterm_targets(const std::vector<SessionProcess>& processes, pid_t rank, pid_t handler) {
  std::vector<pid_t> targets;
  for (const SessionProcess& process : processes) {
    bool below = process.pid == handler;
    bool spared = false;
    const SessionProcess* one = &process;
    for (std::size_t steps = 0; !below && steps <= processes.size(); ++steps) {
      const SessionProcess* parent = find(processes, one->parent);
      if (parent == nullptr) {
        break;
      }
      spared = spared || same_program(*one, *parent);
      below = parent->pid == handler;
      one = parent;
    }
    // A process that is not below the handler is either a wrapper of it or an orphan.
    const bool wrapper = !below && (process.pid == rank || find(processes, process.parent) != nullptr);
    if (!wrapper && !(below && spared)) {
      targets.push_back(process.pid);
    }
  }
  return targets;
}

}  // namespace sirtaki::launcher
