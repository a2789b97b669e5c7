// The class of sirtaki._core for local updates. Nothing here decides anything; sirtaki/torch/local_updates.py does.
#pragma once

#include <nanobind/nanobind.h>

namespace sirtaki_python {

void define_local(nanobind::module_& m);

}  // namespace sirtaki_python
