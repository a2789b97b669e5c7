#include "adapters/python/sigterm.h"

#include <signal.h>

#include <atomic>

namespace sirtaki_python {
namespace {

static_assert(std::atomic<bool>::is_always_lock_free, "a handler of signals takes no lock");

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): a handler of signals has no other state
struct sigaction python_action {};        // runs the handler of Python in the main thread, later
std::atomic<bool> kills = false;          // SIGTERM that acts ends the process, as it does without a handler
std::atomic<bool> may_leave = false;      // the first one is a notice
std::atomic<bool> warned = false;         // a SIGTERM has come before
std::atomic<bool> the_last_acts = false;  // it was no notice; until Python asks
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

constexpr int kNotice = 1;  // launcher/agent/agent_ranks.cc: a notice of the agent, which may follow another one

void on_sigterm(int number, siginfo_t* info, void* /*context*/) {
  const bool by_agent = info->si_code == SI_QUEUE;
  const bool notice = by_agent && info->si_value.sival_int == kNotice;
  const bool again = !notice && warned.exchange(true);
  if (again || !may_leave || (by_agent && !notice)) {
    the_last_acts = true;
    if (kills) {
      signal(number, SIG_DFL);
      raise(number);  // comes when this function returns
      return;
    }
  }
  python_action.sa_handler(number);
}

// Puts on_sigterm() in front of the handler that Python has set. Python calls its own only between two operations of
// the main thread, which may wait in one for ever: what ends the process does not depend on it.
void watch(bool acts_by_default, bool warned_before) {
  sigaction(SIGTERM, nullptr, &python_action);
  kills = acts_by_default;
  warned = warned_before;
  the_last_acts = false;
  struct sigaction action = python_action;
  action.sa_sigaction = on_sigterm;
  action.sa_flags |= SA_SIGINFO;
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void define_sigterm(nanobind::module_& m) {
  m.def("watch_sigterm", watch, nanobind::arg("kills"), nanobind::arg("warned"));
  m.def("notice_sigterm", [](bool possible) { may_leave = possible; });
  m.def("sigterm_acts", [] { return the_last_acts.exchange(false); });
}

}  // namespace sirtaki_python
