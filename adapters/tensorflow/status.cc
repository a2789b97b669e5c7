#include "adapters/tensorflow/status.h"

#include <utility>

namespace sirtaki_tensorflow {
namespace {

// Read by sirtaki/tensorflow/_errors.py.
constexpr const char* kPayload = "sirtaki";

// The code UNAVAILABLE would lose its type inside a tf.function.
TfCode tf_code(sirtaki_status code) {
  switch (code) {
    case SIRTAKI_OK:
      return kTfOk;
    case SIRTAKI_INVALID_ARGUMENT:
      return kTfInvalidArgument;
    case SIRTAKI_MISMATCH:
    case SIRTAKI_NOT_INITIALIZED:
      return kTfFailedPrecondition;
    case SIRTAKI_UNSUPPORTED:
      return kTfUnimplemented;
    default:
      return kTfAborted;
  }
}

}  // namespace

void Failure::write_to(TfStatus* status) const {
  tf().TF_SetStatus(status, tf_code(code), text.c_str());
  const std::string blame =
      std::to_string(static_cast<int>(code)) + ";" + std::to_string(rank) + ";" + tensor + "\n" + text;
  tf().TF_SetPayload(status, kPayload, blame.c_str());
}

Failure invalid(std::string text) {
  return {SIRTAKI_INVALID_ARGUMENT, std::move(text), sirtaki_rank()};
}

Failure of_call(sirtaki_status code) {
  if (code == SIRTAKI_OK) {
    return {};
  }
  return {code, sirtaki_last_error(), sirtaki_last_error_rank(), sirtaki_last_error_tensor()};
}

}  // namespace sirtaki_tensorflow
