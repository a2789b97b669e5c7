// Restarts: when a lost rank of an elastic job that grows is started again, and when its place stays empty. Pure.
#pragma once

#include <map>
#include <optional>

#include "runtime/base/types.h"

namespace sirtaki::launcher {

// A process that has been in the job for so long was no failure of its start.
inline constexpr Duration kLastingStart = std::chrono::minutes(1);

class Restarts {
 public:
  // `most`: starts in a row of processes that do not last.
  explicit Restarts(int most) : most_(most) {}

  // Returns the time until the next start of a rank whose process was in the job for `lasted`, or has never joined: one
  // second, doubled after each process that has not lasted. nullopt: the place stays empty.
  std::optional<Duration> next(Rank rank, Duration lasted);
  // The rank's place goes to another host.
  void forget(Rank rank) { rows_.erase(rank); }
  // Returns the number of processes of a rank in a row that have not lasted, up to the last next().
  int failures(Rank rank) const;

 private:
  struct Row {
    int starts = 0;  // since a process has lasted
    int failures = 0;
  };
  int most_;
  std::map<Rank, Row> rows_;
};

}  // namespace sirtaki::launcher
