// Agent: the part of sirtakirun that runs on each host, local and remote alike, and owns the rank processes there.
//
// Started as `sirtakirun --agent` with the agent protocol on stdin and stdout. It lives as long as its stdin: when
// stdin ends (the launcher is gone, or ssh is cut), the agent ends every process that the ranks started, then itself. A
// supervisor, the parent process of the agent under another name, does the same if the agent itself is killed. Ranks
// die with the agent in any case.
#pragma once

namespace sirtaki::launcher {

// Forks the supervisor, runs the agent and returns the exit code of the process. Call it before any thread exists.
int run_agent();

}  // namespace sirtaki::launcher
