// supervise(): runs an agent in a process of its own, below this one, its supervisor, which ends all that the agent
// leaves if it is killed.
//
// The supervisor keeps the process id with which this process was started, and has a name of its own. It passes signals
// on to the agent, and stops and ends with it.
#pragma once

#include <chrono>
#include <functional>

namespace sirtaki::launcher {

// Time in which the agent, or its supervisor, ends all processes below it.
inline constexpr auto kSweepLimit = std::chrono::seconds(2);

struct AgentEnd {
  int exit_code = 1;
  bool lost = false;   // the launcher is gone, and has not said that the host is not needed any more
  bool asked = false;  // a signal has asked for the end
};

// Forks, and calls `run` in the agent, which ends with the process and never returns, unless the fork has failed: then
// this process is the agent. Returns in the supervisor when the agent and all processes below have ended. The
// supervisor calls `release` at its start, to close what the agent alone should hold. `joined`: the host has joined a
// job by itself, and has a terminal of its own. Signals that the caller blocks reach the agent, and are blocked again
// at the end. Call it while this process has no other thread.
AgentEnd supervise(bool joined, const std::function<void()>& release, const std::function<AgentEnd()>& run);

}  // namespace sirtaki::launcher
