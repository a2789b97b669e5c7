// Agent: the part of sirtakirun that runs on each host, local and remote alike, and owns the rank processes there.
//
// Started as `sirtakirun --agent` with the agent protocol on stdin and stdout. It lives as long as its stdin: when
// stdin ends (the launcher is gone, or ssh is cut), the agent ends every process that the ranks started, then itself. A
// supervisor, the parent process of the agent under another name, does the same if the agent itself is killed. Ranks
// die with the agent in any case.
//
// On a host that joins a job by itself, the agent has a connection to the launcher in the place of stdin and stdout.
// There, SIGTERM and SIGINT are the wish to leave the job, which the launcher fulfils; SIGQUIT and a second SIGINT end
// all at once. SIGTSTP stops the ranks, agent and supervisor, and SIGCONT continues them.
#pragma once

#include "launcher/agent/channel.h"
#include "launcher/agent/supervisor.h"

namespace sirtaki::launcher {

// Runs the agent under its supervisor (supervisor.h) and returns the exit code of the process. Call it before any
// thread exists.
int run_agent();
// The same over `ends`, for a host that has joined a job by itself. The exit code is that of the job, 0 after an
// orderly leave, 1 if the launcher is lost, or 128 and the number of the signal that has ended all at once. A process
// may call it again for another connection.
AgentEnd run_joined_agent(ChannelEnds ends);

}  // namespace sirtaki::launcher
