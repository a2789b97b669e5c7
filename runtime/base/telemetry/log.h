// Logger: writes one line per event, with level and rank, to standard error, a file or a sink of the caller.
//
// There is no global logger: its owner (Session, CoordinatorServer, launcher) passes it by reference, so several
// sessions in one process keep their lines apart. Threads: any; a line is written whole. Not for: the hot path. Build
// costly texts behind enabled().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/base/config/config.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// Returns "trace", "debug", "info", "warn", "error" or "off".
std::string_view log_level_name(LogLevel level);
// Returns the level of a name; kWarn for an unknown one, which Config rejects earlier.
LogLevel log_level_from_name(std::string_view name);

// Receives finished lines, under the lock of the logger.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(LogLevel level, std::string_view line) = 0;  // the line ends with '\n'
};

// Writes to standard error, one write per line; ignores errors of writing.
std::unique_ptr<LogSink> stderr_sink();
// Appends to a file; kUnavailable if it cannot be opened.
Result<std::unique_ptr<LogSink>> file_sink(const std::string& path);
// Writes to a duplicate of an open descriptor; kUnavailable if it is not open. A non-blocking descriptor drops what it
// does not take at once; with a blocking one the caller of the logger waits.
Result<std::unique_ptr<LogSink>> fd_sink(int fd);

struct LoggerOptions {
  LogLevel level = LogLevel::kWarn;
  Rank rank = -1;                                                     // -1 omits the rank from the prefix
  bool timestamps = true;                                             // UTC, to the microsecond
  bool json = false;                                                  // each line is a JSON object
  std::function<std::chrono::system_clock::time_point()> wall_clock;  // empty: the clock of the system
  std::function<TimePoint()> clock;                                   // for rate limits; empty: steady_clock
};

class Logger {
 public:
  Logger(LoggerOptions options, std::unique_ptr<LogSink> sink);
  // Makes a logger from the options of the section log.
  static Result<std::unique_ptr<Logger>> create(const Config& config, Rank rank);

  bool enabled(LogLevel level) const { return level >= options_.level && level != LogLevel::kOff; }
  void write(LogLevel level, std::string_view text);
  void debug(std::string_view text) { write(LogLevel::kDebug, text); }
  void info(std::string_view text) { write(LogLevel::kInfo, text); }
  void warn(std::string_view text) { write(LogLevel::kWarn, text); }
  void error(std::string_view text) { write(LogLevel::kError, text); }
  // Writes at most one line per `interval` for each `key`; the next line gives the number of omitted ones.
  void write_limited(LogLevel level, std::string_view key, Duration interval, std::string_view text);

 private:
  struct Limit {
    TimePoint last;
    std::uint64_t suppressed = 0;
  };
  static constexpr std::size_t kMaxKeys = 1024;  // the oldest key is forgotten beyond it

  void write_locked(LogLevel level, std::string_view text);
  std::string text_line(LogLevel level, std::string_view text) const;
  std::string json_line(LogLevel level, std::string_view text) const;
  Limit* admit_locked(std::string_view key, Duration interval);

  const LoggerOptions options_;
  std::mutex mutex_;                                  // lines come from several threads and must not mix
  std::unique_ptr<LogSink> sink_;                     // guarded by mutex_
  std::map<std::string, Limit, std::less<>> limits_;  // guarded by mutex_
};

}  // namespace sirtaki
