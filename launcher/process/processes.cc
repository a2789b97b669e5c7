#include "launcher/process/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <thread>

namespace sirtaki::launcher {

namespace {

constexpr std::size_t kMostOfProc = 64 * 1024;

bool next_number(std::string_view& text, pid_t& value) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

std::vector<ProcessInfo> all_processes() {
  std::vector<ProcessInfo> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir("/proc"), closedir);
  if (!dir) {
    return all;
  }
  while (const dirent* entry = readdir(dir.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') {
      continue;
    }
    if (const auto info = parse_stat(read_proc_file(std::string("/proc/") + entry->d_name + "/stat"))) {
      all.push_back(*info);
    }
  }
  return all;
}

}  // namespace

std::string read_proc_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return {};
  }
  // A long list of groups may fill a page.
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; text.size() < kMostOfProc && (size = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  close(fd);
  return text;
}

std::optional<ProcessInfo> parse_stat(std::string_view line) {
  // "pid (name) state ppid pgrp session ...": the name may hold spaces and parentheses, so look for the last one.
  ProcessInfo info;
  if (!next_number(line, info.pid)) {
    return std::nullopt;
  }
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos || line.size() < name_end + 3) {
    return std::nullopt;
  }
  info.state = line[name_end + 2];
  line.remove_prefix(name_end + 3);
  if (!next_number(line, info.parent) || !next_number(line, info.group) || !next_number(line, info.session)) {
    return std::nullopt;
  }
  return info;
}

std::vector<ProcessInfo> descendants(const std::set<pid_t>& spared) {
  const std::vector<ProcessInfo> all = all_processes();
  std::set<pid_t> family = {getpid()};
  // Children may precede their parents in the listing.
  for (bool grew = true; grew;) {
    grew = false;
    for (const ProcessInfo& info : all) {
      const bool new_member =
          family.contains(info.parent) && !spared.contains(info.pid) && family.insert(info.pid).second;
      grew = grew || new_member;
    }
  }
  family.erase(getpid());
  std::vector<ProcessInfo> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const ProcessInfo& info) { return family.contains(info.pid) && info.state != 'Z'; });
  return found;
}

std::vector<ProcessInfo> session_members(pid_t session) {
  std::vector<ProcessInfo> found = descendants();
  std::erase_if(found, [&](const ProcessInfo& info) { return info.session != session; });
  return found;
}

void become_subreaper() {
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

bool is_ignored(int signal_number) {
  struct sigaction present {};
  return sigaction(signal_number, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

int kill_round(const std::set<pid_t>& spared) {
  const std::vector<ProcessInfo> left = descendants(spared);
  for (const ProcessInfo& info : left) {
    kill(info.pid, SIGKILL);
  }
  return static_cast<int>(left.size());
}

void stop_or_continue_descendants(int signal_number) {
  // A process may fork between the listing and the signal; its child is in the next listing.
  constexpr int kRounds = 5;
  std::set<pid_t> reached;
  for (int round = 0; round < kRounds; ++round) {
    bool grew = false;
    for (const ProcessInfo& info : descendants()) {
      if (reached.insert(info.pid).second) {
        kill(info.pid, signal_number);
        grew = true;
      }
    }
    if (!grew) {
      return;
    }
  }
}

int kill_descendants(Duration limit, const std::set<pid_t>& spared) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    const int left = kill_round(spared);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (left == 0 || std::chrono::steady_clock::now() >= deadline) {
      return left;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string describe_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return "killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  }
  return "exit code " + std::to_string(WEXITSTATUS(wait_status));
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace sirtaki::launcher
