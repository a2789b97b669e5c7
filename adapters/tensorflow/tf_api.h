// TfApi: C functions of TensorFlow, found in the library that the process has loaded already.
//
// One constant table per process, filled on first use. Threads: any.
#pragma once

#include <string>

#include "adapters/tensorflow/tf_types.h"

namespace sirtaki_tensorflow {

struct TfApi {
#define SRT_TF(result, name, parameters) result(*name) parameters = nullptr;
#include "adapters/tensorflow/tf_functions.inc"
#undef SRT_TF
  // True if the symbol Device::ComputeAsync(AsyncOpKernel*, OpKernelContext*, std::function<void()>) exists: callbacks
  // are then std::functions of libstdc++.
  bool callbacks_are_ours = false;
  // Empty, or the reason why no operation can be registered.
  std::string problem;
};

const TfApi& tf();

}  // namespace sirtaki_tensorflow
