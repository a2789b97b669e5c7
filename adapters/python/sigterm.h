// Handler of SIGTERM for a rank that takes the first one for a notice. The next one acts at once, also while Python is
// stuck in other code and runs no handlers, and so do the one by which an agent ends a job and the first one to a rank
// that may not leave.
//
// Agents send that one by sigqueue(), everybody else by kill(). An agent marks a notice of its own. For:
// sirtaki/_notice.py, which decides about the first.
#pragma once

#include <nanobind/nanobind.h>

namespace sirtaki_python {

// Adds the functions to the module; called once, by core.cc.
void define_sigterm(nanobind::module_& m);

}  // namespace sirtaki_python
