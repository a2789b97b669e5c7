#include "adapters/python/calls.h"

#include <Python.h>

namespace sirtaki_python {
namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): the module lives as long as its process
unsigned long main_thread = 0;
PyObject* error_factory = nullptr;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

void configure(nb::object factory, unsigned long main_thread_id) {
  Py_XDECREF(error_factory);
  error_factory = factory.release().ptr();
  main_thread = main_thread_id;
}

int interrupted(void*) {
  if (PyThread_get_thread_ident() != main_thread) {
    return 0;
  }
  const nb::gil_scoped_acquire gil;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 ? 1 : 0;
}

void check(sirtaki_status status) {
  if (status == SIRTAKI_OK) {
    return;
  }
  // The exception of a signal handler (KeyboardInterrupt), or of the program's own function, is already set.
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  const nb::object error = nb::borrow(error_factory)(static_cast<int>(status), sirtaki_last_error(),
                                                     sirtaki_last_error_rank(), sirtaki_last_error_tensor());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

std::string json_or_raise(const char* text, sirtaki_status failure) {
  if (text == nullptr) {
    check(failure);
  }
  return text;
}

sirtaki_tensor to_tensor(const PyTensor& tensor) {
  const auto& [address, dtype, device_type, device_index, dims, strides] = tensor;
  sirtaki_tensor out{};
  out.struct_size = sizeof(out);
  out.data = reinterpret_cast<void*>(address);
  out.dtype = dtype;
  out.device_type = device_type;
  out.device_index = device_index;
  out.ndim = static_cast<std::int32_t>(dims.size());
  out.dims = dims.data();
  out.strides = strides ? strides->data() : nullptr;
  return out;
}

}  // namespace sirtaki_python
