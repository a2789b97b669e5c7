#include "adapters/tensorflow/tf_api.h"

#include <dlfcn.h>

namespace sirtaki_tensorflow {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";
constexpr const char* kComputeAsync =
    "_ZN10tensorflow6Device12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextESt8functionIFvvEE";

template <class Function>
void find(void* library, const char* name, Function*& out, std::string& problem) {
  out = reinterpret_cast<Function*>(::dlsym(library, name));
  if (out == nullptr && problem.empty()) {
    problem = std::string(kLibrary) + " has no function " + name;
  }
}

TfApi load() {
  TfApi api;
  void* const library = ::dlopen(kLibrary, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) {
    api.problem = std::string(kLibrary) + " is not loaded; import tensorflow first";
    return api;
  }
#define SRT_TF(result, name, parameters) find(library, #name, api.name, api.problem);
#include "adapters/tensorflow/tf_functions.inc"
#undef SRT_TF
  api.callbacks_are_ours = ::dlsym(library, kComputeAsync) != nullptr;
  return api;
}

}  // namespace

const TfApi& tf() {
  static const TfApi kApi = load();
  return kApi;
}

}  // namespace sirtaki_tensorflow
