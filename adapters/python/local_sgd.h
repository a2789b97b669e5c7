// Local, the class of sirtaki._core for local updates: sirtaki_local_* of the C interface for Python.
//
// For: sirtaki/_local_sgd.py, which makes all decisions. Used from one thread at a time.
#pragma once

#include <nanobind/nanobind.h>

namespace sirtaki_python {

// Adds the class to the module; called once, by core.cc.
void define_local(nanobind::module_& m);

}  // namespace sirtaki_python
