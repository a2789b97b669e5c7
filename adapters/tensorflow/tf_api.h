// TfApi: TensorFlow's C functions, found in the library that the process has loaded already.
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
  // The symbol of Device::ComputeAsync(AsyncOpKernel*, OpKernelContext*, std::function<void()>) exists: TensorFlow's
  // callbacks are libstdc++'s std::function.
  bool callbacks_are_ours = false;
  // Empty, or why nothing can be registered.
  std::string problem;
};

const TfApi& tf();

}  // namespace sirtaki_tensorflow
