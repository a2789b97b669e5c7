// Handlers: selects the processes of a rank that should receive a signal, from the signal masks in /proc.
//
// A rank is often a wrapper (`conda run`, a shell) around its program, and the program often has helpers (data
// loaders). A signal that asks to save the model must reach only the program: a wrapper that does not handle the signal
// would die of it, and take the program with it.
// Used by the agent. Reads /proc; no thread of its own. The rules are pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/process/processes.h"

namespace sirtaki::launcher {

// Signals of one process as bits, signal N at bit N - 1.
struct SignalMasks {
  std::uint64_t blocked = 0;
  std::uint64_t ignored = 0;
  std::uint64_t caught = 0;

  // Returns whether the process handles the signal: it has a handler, or a thread that waits for the signal.
  bool handles(int signal_number) const;
  // Returns whether the signal cannot end the process.
  bool survives(int signal_number) const;
};

// Reads the text of /proc/PID/status; nullopt when a mask is missing.
std::optional<SignalMasks> parse_signal_masks(std::string_view status);

// One process of a rank's session.
struct SessionProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  std::string program;  // target of /proc/PID/exe
  std::string command;  // /proc/PID/cmdline
  SignalMasks masks;
};

// Returns the processes of session `session` with their programs and masks.
std::vector<SessionProcess> session_processes(const std::vector<ProcessInfo>& all, pid_t session);

// Returns the process that handles (or, with `survives`, at least survives) the signal: the rank itself, or the first
// process below it in a chain of only children. Copies that a program has forked of itself do not count.
std::optional<pid_t> find_handler(const std::vector<SessionProcess>& processes, pid_t rank, int signal_number,
                                  bool survives = false);

// Returns the processes that get SIGTERM if `handler` handles it. Left out are the wrappers above `handler`, and
// helpers below it that run the same program as their parent, which ends them itself.
std::vector<pid_t> sigterm_targets(const std::vector<SessionProcess>& processes, pid_t rank, pid_t handler);

}  // namespace sirtaki::launcher
