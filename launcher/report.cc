#include "launcher/report.h"

#include <signal.h>

namespace sirtaki::launcher {

std::string failure_line(const Failure& failure) {
  if (failure.rank < 0) {
    return failure.what;
  }
  return "rank " + std::to_string(failure.rank) + " on " + failure.host + ": " + failure.what;
}

std::string without_rank(const std::string& text, Rank rank) {
  const std::size_t end = text.find(") ");
  const bool named = text.starts_with("rank " + std::to_string(rank) + " (") && end != std::string::npos;
  return named ? text.substr(end + 2) : text;
}

std::string signal_hint(int signal) {
  switch (signal) {
    case SIGKILL:
      return "if nobody killed it, the kernel did, because memory ran out: look at 'dmesg' and run fewer ranks on the "
             "host";
    case SIGSEGV:
    case SIGABRT:
    case SIGFPE:
      return "the program crashed; for Python, 'python -X faulthandler' shows where";
    case SIGBUS:
      return "often a full /dev/shm: look at 'df /dev/shm', and use fewer DataLoader workers";
    case SIGILL:
      return "the program uses instructions this CPU lacks; it was built for another";
    default:
      return {};
  }
}

std::vector<std::string> failure_report(const Failure& failure, const std::vector<std::string>& tail) {
  const std::string who = failure.rank < 0 ? "no rank is to blame: " : "the first to fail was ";
  std::vector<std::string> lines = {"sirtakirun: " + who + failure_line(failure)};
  if (!tail.empty()) {
    lines.push_back("sirtakirun: last lines of its standard error:");
    for (const std::string& line : tail) {
      lines.push_back("  | " + line);
    }
  }
  if (failure.signal) {
    if (const std::string hint = signal_hint(*failure.signal); !hint.empty()) {
      lines.push_back("sirtakirun: " + hint);
    }
  }
  return lines;
}

}  // namespace sirtaki::launcher
