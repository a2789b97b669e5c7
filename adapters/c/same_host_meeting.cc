#include "adapters/c/same_host_meeting.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

namespace sirtaki::adapters {
namespace {

std::string errno_text() {
  return std::strerror(errno);
}

// Returns the start time of a process, field 22 of /proc/PID/stat. A process id alone may be reused by another process.
std::optional<std::string> start_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) {
    return std::nullopt;
  }
  // Search from the end: the second field is the name of the program, which may contain blanks and brackets.
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(line.substr(end_of_name + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    if (!(fields >> field)) {
      return std::nullopt;
    }
  }
  return field;
}

Status check_directory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return unavailable("cannot make " + directory + ": " + errno_text());
  }
  struct stat info {};
  if (lstat(directory.c_str(), &info) != 0) {
    return unavailable("cannot look at " + directory + ": " + errno_text());
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return unavailable(directory + " must be a directory of this user with mode 0700; remove it and start again");
  }
  return {};
}

std::string file_name_of(const std::string& text) {
  std::string name = text;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
  constexpr std::size_t kMaxName = 200;
  return name.substr(0, kMaxName);
}

std::optional<Meeting> read_meeting(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    return std::nullopt;
  }
  struct stat info {};
  char buffer[1024];
  const bool mine = fstat(fd, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 077) == 0;
  const ssize_t size = mine ? read(fd, buffer, sizeof(buffer)) : -1;
  close(fd);
  if (size <= 0) {
    return std::nullopt;
  }
  std::istringstream in(std::string(buffer, static_cast<std::size_t>(size)));
  pid_t pid = 0;
  std::string started;
  std::string hex;
  Meeting meeting;
  if (!(in >> pid >> started >> meeting.endpoint >> hex) || start_time(pid) != started) {
    return std::nullopt;
  }
  auto secret = rendezvous::Secret::from_hex(hex);
  if (!secret) {
    return std::nullopt;
  }
  meeting.secret = *secret;
  return meeting;
}

Status write_all(int fd, const std::string& text) {
  const ssize_t written = write(fd, text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) {
    return unavailable(written < 0 ? errno_text() : "short write");
  }
  return {};
}

}  // namespace

std::string meeting_directory() {
  return "/tmp/sirtaki-" + std::to_string(geteuid());
}

Result<std::string> meeting_path(const std::string& directory, const JobEnv& job) {
  SRT_TRY(check_directory(directory));
  // The default job id of torchrun is "none", which does not distinguish jobs.
  if (!job.job_id.empty() && job.job_id != "none") {
    return directory + "/" + file_name_of(job.launcher + "-" + job.job_id);
  }
  const pid_t parent = getppid();
  return directory + "/" +
         file_name_of(job.launcher + "-" + std::to_string(parent) + "-" + start_time(parent).value_or("0"));
}

Status write_meeting(const std::string& path, const Meeting& meeting) {
  const std::string temporary = path + "." + std::to_string(getpid());
  unlink(temporary.c_str());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return unavailable("cannot write " + temporary + ": " + errno_text());
  }
  const Status written = write_all(fd, std::to_string(getpid()) + " " + start_time(getpid()).value_or("0") + "\n" +
                                           meeting.endpoint + "\n" + meeting.secret.to_hex() + "\n");
  close(fd);
  if (!written.ok()) {
    unlink(temporary.c_str());
    return written.with_context("cannot write " + temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string why = errno_text();
    unlink(temporary.c_str());
    return unavailable("cannot write " + path + ": " + why);
  }
  return {};
}

Result<Meeting> await_meeting(const std::string& path, Duration timeout, const std::function<bool()>& interrupted) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (auto meeting = read_meeting(path)) {
      return *std::move(meeting);
    }
    if (interrupted && interrupted()) {
      return Status(Code::kAborted, "interrupted while waiting for rank 0");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Code::kUnavailable,
                    "rank 0 has not opened its meeting point (" + path +
                        ") in time; did it fail to start, or does it run on another host? For several hosts set "
                        "SIRTAKI_JOB_RENDEZVOUS and SIRTAKI_JOB_SECRET_FILE",
                    Blame{0, ""});
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace sirtaki::adapters
