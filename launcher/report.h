// Report: the texts a user reads when a run fails. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct Failure {
  Rank rank = -1;
  std::string host;
  std::string what;  // "exit code 3", "killed by signal 9 (Killed)", "lost: ..."
  int exit_code = 1;
  std::optional<int> signal;
};

// "rank 2 on node1: killed by signal 9 (Killed)"
std::string failure_line(const Failure& failure);
// "rank 3 (host a, process 7) has been silent" without what failure_line() says already: "has been silent". Other texts
// stay as they are.
std::string without_rank(const std::string& text, Rank rank);
// The likely cause of a signal and what to do; empty when there is nothing helpful to say.
std::string signal_hint(int signal);
// The lines at the end of a failed run: who, its last lines, a hint. `tail`: of that rank's standard error.
std::vector<std::string> failure_report(const Failure& failure, const std::vector<std::string>& tail);

}  // namespace sirtaki::launcher
