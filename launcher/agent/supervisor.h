// fork_agent(): puts a process above an agent, its supervisor, which ends all that the agent leaves if it is killed.
//
// The supervisor keeps the process id with which this process was started, and has a name of its own. It passes signals
// on to the agent, and stops and ends with it.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

namespace sirtaki::launcher {

// Time in which the agent, or its supervisor, ends all processes below it.
inline constexpr auto kSweepLimit = std::chrono::seconds(2);

// Forks. Returns nothing in the agent, which is this process if the fork has failed. Returns in the supervisor when the
// agent and all processes below have ended: the exit code. The supervisor calls `release` at its start, to close what
// the agent alone should hold. `joined`: the host has joined a job by itself, and has a terminal of its own. Call it
// before any thread exists.
std::optional<int> fork_agent(bool joined, const std::function<void()>& release);

}  // namespace sirtaki::launcher
