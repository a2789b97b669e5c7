// Calls of the C interface from Python: errors become exceptions, and a waiting thread does not hold the GIL.
//
// For: the files of sirtaki._core. While a call blocks, the main thread checks for signals ten times a second, so that
// Ctrl-C ends the wait. Not for: the meaning of the calls.
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

// Requires one call, at the import of the package. The factory makes the exception for (code, text, rank, tensor).
void configure(nb::object error_factory, unsigned long main_thread_id);
// Returns 1 after a signal; callback of sirtaki_init(). Only the main thread gets signals and may run their handlers.
int interrupted(void*);

// Raises the exception of the last error of the calling thread, unless `status` is SIRTAKI_OK. Requires the GIL.
void check(sirtaki_status status);
// Runs a call of the C interface without the GIL, then check().
template <class Call>
void blocking(Call&& call) {
  sirtaki_status status;
  {
    const nb::gil_scoped_release nogil;
    status = call();
  }
  check(status);
}
// Returns the text; for NULL, raises the text of the last error as the exception of `failure`.
std::string json_or_raise(const char* text, sirtaki_status failure = SIRTAKI_NOT_INITIALIZED);

// Returns a description that points into `tensor`.
sirtaki_tensor to_tensor(const PyTensor& tensor);

}  // namespace sirtaki_python
