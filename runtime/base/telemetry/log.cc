#include "runtime/base/telemetry/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

#include "runtime/base/json.h"

namespace sirtaki {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warn", "error", "off"};

class FdSink final : public LogSink {
 public:
  FdSink(int fd, bool owned) : fd_(fd), owned_(owned) {}
  FdSink(const FdSink&) = delete;
  FdSink& operator=(const FdSink&) = delete;
  ~FdSink() override {
    if (owned_) {
      ::close(fd_);
    }
  }

  void write(LogLevel /*level*/, std::string_view line) override {
    while (!line.empty()) {
      const ssize_t written = ::write(fd_, line.data(), line.size());
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written <= 0) {
        return;  // there is no other place to report the error
      }
      line.remove_prefix(static_cast<std::size_t>(written));
    }
  }

 private:
  const int fd_;
  const bool owned_;
};

std::string format_time(std::chrono::system_clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(since / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> day{};
  const std::size_t length = std::strftime(day.data(), day.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 16> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%06dZ", static_cast<int>(since % 1'000'000));
  return std::string(day.data(), length) + fraction.data();
}

LoggerOptions with_clocks(LoggerOptions options) {
  if (!options.wall_clock) {
    options.wall_clock = [] { return std::chrono::system_clock::now(); };
  }
  if (!options.clock) {
    options.clock = [] { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); };
  }
  return options;
}

}  // namespace

std::string_view log_level_name(LogLevel level) {
  return kNames.at(static_cast<std::size_t>(level));
}

LogLevel log_level_from_name(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  return found == kNames.end() ? LogLevel::kWarn : static_cast<LogLevel>(found - kNames.begin());
}

std::unique_ptr<LogSink> stderr_sink() {
  return std::make_unique<FdSink>(STDERR_FILENO, false);
}

Result<std::unique_ptr<LogSink>> file_sink(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return unavailable("cannot open the log file " + path + ": " + std::strerror(errno) + "; see the option log.file");
  }
  return std::unique_ptr<LogSink>(std::make_unique<FdSink>(fd, true));
}

Result<std::unique_ptr<LogSink>> fd_sink(int fd) {
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) {
    return unavailable("cannot write the log to descriptor " + std::to_string(fd) + ": " + std::strerror(errno) +
                       "; see the option log.fd");
  }
  return std::unique_ptr<LogSink>(std::make_unique<FdSink>(own, true));
}

Logger::Logger(LoggerOptions options, std::unique_ptr<LogSink> sink)
    : options_(with_clocks(std::move(options))), sink_(std::move(sink)) {}

Result<std::unique_ptr<Logger>> Logger::create(const Config& config, Rank rank) {
  LoggerOptions options;
  options.level = log_level_from_name(config.log.level);
  options.rank = rank;
  options.timestamps = config.log.timestamps;
  options.json = config.log.format == "json";
  std::unique_ptr<LogSink> sink = stderr_sink();
  if (config.log.fd >= 0) {
    SRT_ASSIGN(sink, fd_sink(static_cast<int>(config.log.fd)));
  } else if (!config.log.file.empty()) {
    SRT_ASSIGN(sink, file_sink(config.log.file));
  }
  return std::make_unique<Logger>(std::move(options), std::move(sink));
}

void Logger::write(LogLevel level, std::string_view text) {
  if (!enabled(level)) {
    return;
  }
  const std::lock_guard lock(mutex_);
  write_locked(level, text);
}

void Logger::write_locked(LogLevel level, std::string_view text) {
  sink_->write(level, options_.json ? json_line(level, text) : text_line(level, text));
}

std::string Logger::json_line(LogLevel level, std::string_view text) const {
  JsonWriter json;
  json.begin_object();
  if (options_.timestamps) {
    json.key("time").value(format_time(options_.wall_clock()));
  }
  json.key("level").value(log_level_name(level));
  if (options_.rank >= 0) {
    json.key("rank").value(options_.rank);
  }
  json.key("message").value(text).end_object();
  return std::move(json).take() + "\n";
}

std::string Logger::text_line(LogLevel level, std::string_view text) const {
  std::string line;
  if (options_.timestamps) {
    line += format_time(options_.wall_clock()) + " ";
  }
  line += "sirtaki";
  if (options_.rank >= 0) {
    line += "[" + std::to_string(options_.rank) + "]";
  }
  line += " " + std::string(log_level_name(level)) + ": ";
  // Replaces line ends, which texts of peers and file names may contain, since one event is one line.
  for (const char c : text) {
    line += c == '\n' || c == '\r' ? ' ' : c;
  }
  line += '\n';
  return line;
}

Logger::Limit* Logger::admit_locked(std::string_view key, Duration interval) {
  const TimePoint now = options_.clock();
  if (const auto found = limits_.find(key); found != limits_.end()) {
    if (now - found->second.last < interval) {
      ++found->second.suppressed;
      return nullptr;
    }
    found->second.last = now;
    return &found->second;
  }
  if (limits_.size() >= kMaxKeys) {
    limits_.erase(std::min_element(limits_.begin(), limits_.end(),
                                   [](const auto& a, const auto& b) { return a.second.last < b.second.last; }));
  }
  return &limits_.emplace(key, Limit{now, 0}).first->second;
}

void Logger::write_limited(LogLevel level, std::string_view key, Duration interval, std::string_view text) {
  if (!enabled(level)) {
    return;
  }
  const std::lock_guard lock(mutex_);
  Limit* limit = admit_locked(key, interval);
  if (limit == nullptr) {
    return;
  }
  if (limit->suppressed == 0) {
    write_locked(level, text);
    return;
  }
  write_locked(level, std::string(text) + " (and " + std::to_string(limit->suppressed) + " more like it before)");
  limit->suppressed = 0;
}

}  // namespace sirtaki
