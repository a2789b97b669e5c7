#include "launcher/agent/output_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace sirtaki::launcher {

namespace {

// Returns 0 or the errno of the failure.
int write_fully(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      // Another process that shares the terminal has made it non-blocking.
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

OutputWriter::OutputWriter(Events events) : events_(std::move(events)), thread_([this] { run(); }) {}

OutputWriter::~OutputWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void OutputWriter::write(OutputStream stream, std::string bytes) {
  if (bytes.empty()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    backlog_ += bytes.size();
    queue_.emplace_back(stream, std::move(bytes));
  }
  changed_.notify_all();
}

std::size_t OutputWriter::backlog() const {
  const std::lock_guard lock(mutex_);
  return backlog_;
}

bool OutputWriter::finish(std::optional<Duration> limit) {
  std::unique_lock lock(mutex_);
  const auto empty = [this] { return backlog_ == 0; };
  if (!limit) {
    changed_.wait(lock, empty);
    return true;
  }
  return changed_.wait_for(lock, *limit, empty);
}

void OutputWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) {
      return;
    }
    const auto [stream, bytes] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    bool& broken = broken_[static_cast<int>(stream)];
    if (!broken && write_fully(stream == OutputStream::kStdout ? STDOUT_FILENO : STDERR_FILENO, bytes) != 0) {
      broken = true;
      if (stream == OutputStream::kStdout) {
        events_.on_broken();
      }
    }
    lock.lock();
    backlog_ -= bytes.size();
    if (backlog_ == 0) {
      changed_.notify_all();
      lock.unlock();
      events_.on_drained();
      lock.lock();
    }
  }
}

Status RankFiles::File::open() {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  fd.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  failed = fd.get() < 0;
  return failed ? unavailable("--output-dir: cannot write " + path + ": " + strerror(errno)) : Status();
}

Result<RankFiles> RankFiles::create(const std::string& directory, int ranks, int places) {
  RankFiles files;
  const std::size_t width = std::to_string(places - 1).size();
  for (int rank = 0; rank < places; ++rank) {
    std::string number = std::to_string(rank);
    number.insert(0, width - number.size(), '0');
    for (const char* name : {"/stdout", "/stderr"}) {
      File file{FileDescriptor(), directory + "/rank." + number + name};
      if (rank < ranks) {
        SRT_TRY(file.open());
      }
      files.files_.push_back(std::move(file));
    }
  }
  return files;
}

Status RankFiles::write(Rank rank, OutputStream stream, std::string_view bytes) {
  const int index = 2 * rank + static_cast<int>(stream);
  File& file = files_.at(static_cast<std::size_t>(index));
  if (file.failed) {
    return Status();
  }
  if (file.fd.get() < 0) {
    SRT_TRY(file.open());
  }
  if (const int error = write_fully(file.fd.get(), bytes); error != 0) {
    file.fd.reset();
    file.failed = true;
    return unavailable("cannot write " + file.path + ": " + strerror(error));
  }
  return Status();
}

}  // namespace sirtaki::launcher
