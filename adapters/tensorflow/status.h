// ScopedStatus, Failure: statuses of TensorFlow, and errors of a kernel with the rank and the tensor that caused them.
#pragma once

#include <string>

#include "adapters/c/sirtaki.h"
#include "adapters/tensorflow/tf_api.h"

namespace sirtaki_tensorflow {

class ScopedStatus {
 public:
  ScopedStatus() : status_(tf().TF_NewStatus()) {}
  ~ScopedStatus() { tf().TF_DeleteStatus(status_); }
  ScopedStatus(const ScopedStatus&) = delete;
  ScopedStatus& operator=(const ScopedStatus&) = delete;

  TfStatus* get() const { return status_; }
  bool ok() const { return tf().TF_GetCode(status_) == kTfOk; }
  std::string message() const { return tf().TF_Message(status_); }

 private:
  TfStatus* const status_;
};

// An error; SIRTAKI_OK means success.
struct Failure {
  sirtaki_status code = SIRTAKI_OK;
  std::string text = {};
  int rank = -1;
  std::string tensor = {};

  bool ok() const { return code == SIRTAKI_OK; }
  // Writes code, text and, for the Python package, the rank and tensor that caused the error.
  void write_to(TfStatus* status) const;
};

Failure invalid(std::string text);
// Returns the error of the last call to the runtime on this thread, which returned `code`.
Failure of_call(sirtaki_status code);

}  // namespace sirtaki_tensorflow
