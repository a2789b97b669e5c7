// Calls of the C interface from Python: errors become exceptions, and whoever waits does not hold the GIL.
//
// For: the files of sirtaki._core. While a call blocks, the main thread looks for signals ten times a second, so that
// Ctrl-C ends the wait. Not for: what is called.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "adapters/c/sirtaki.h"

namespace sirtaki_python {

namespace nb = nanobind;

using Dims = std::vector<std::int64_t>;
// (address, dtype, device_type, device_index, dims, strides or None)
using PyTensor = std::tuple<std::uintptr_t, int, int, int, Dims, std::optional<Dims>>;

// Once, when the package is imported. The factory makes the exception for (code, text, rank, tensor).
void configure(nb::object error_factory, unsigned long main_thread_id);
// For sirtaki_init(): only the main thread gets signals, and only it may run their handlers.
int interrupted(void*);

// Raises the exception of the calling thread's last error; with the GIL.
void check(sirtaki_status status);
// Runs a call of the C interface without the GIL.
template <class Call>
void blocking(Call&& call) {
  sirtaki_status status;
  {
    const nb::gil_scoped_release nogil;
    status = call();
  }
  check(status);
}
// Of a call that gives NULL after an error.
std::string json_or_raise(const char* text);

// Points into `tensor`.
sirtaki_tensor to_tensor(const PyTensor& tensor);

}  // namespace sirtaki_python
