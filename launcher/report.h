// Report: builds the messages that a user reads when a run fails. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct Failure {
  Rank rank = -1;  // -1: no rank is to blame, and `host` is empty
  std::string host;
  std::string what;  // "exit code 3", "killed by signal 9 (Killed)", "lost: ..."
  int exit_code = 1;
  std::optional<int> signal;
};

// Returns for example "rank 2 on node1: killed by signal 9 (Killed)".
std::string failure_line(const Failure& failure);
// Drops the words that failure_line() repeats: "rank 3 (host a, process 7) has been silent" becomes "has been
// silent". Returns other texts unchanged.
std::string without_rank(const std::string& text, Rank rank);
// Returns the likely cause of a signal and a remedy; empty when neither is known.
std::string signal_hint(int signal);
// Returns the lines at the end of a failed run: the rank, its last lines, a hint. `tail` is the end of its standard
// error.
std::vector<std::string> failure_report(const Failure& failure, const std::vector<std::string>& tail);

}  // namespace sirtaki::launcher
