// ScopedStatus, Failure: TensorFlow's statuses, and what goes wrong in a kernel with the rank and the tensor to blame.
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

// SIRTAKI_OK: nothing went wrong.
struct Failure {
  sirtaki_status code = SIRTAKI_OK;
  std::string text = {};
  int rank = -1;
  std::string tensor = {};

  bool ok() const { return code == SIRTAKI_OK; }
  // Writes code, text and, for the Python package, who is to blame.
  void tell(TfStatus* status) const;
};

Failure invalid(std::string text);
// What the calling thread's last call of the runtime, which answered `code`, said.
Failure of_call(sirtaki_status code);

}  // namespace sirtaki_tensorflow
