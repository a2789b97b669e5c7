// Agent: the part of sirtakirun that runs on each host, local and remote alike, and owns the rank processes there.
//
// Started as `sirtakirun --agent` with the agent protocol on stdin and stdout. It lives as long as its stdin: when that
// ends (launcher gone, ssh cut) it ends every process the ranks started, then itself. A warden, a second process with
// another name above it, does the same should the agent itself be killed; ranks die with the agent in any case.
#pragma once

namespace sirtaki::launcher {

// Forks the warden and runs; returns the exit code of the process. Must be called before any thread exists.
int run_agent();

}  // namespace sirtaki::launcher
