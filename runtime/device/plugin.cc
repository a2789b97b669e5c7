#include "runtime/device/plugin.h"

#include <dlfcn.h>

namespace sirtaki::device {
namespace {

// One of its tables; null where it has none of that name, or of another version.
template <class Function>
auto table(void* library, const char* symbol, std::uint32_t version) -> decltype(Function{}()) {
  auto* const function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) {
    return nullptr;
  }
  const auto* const found = function();
  return found->version == version ? found : nullptr;
}

}  // namespace

Result<Plugin> load_plugin(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const text = dlerror();
    return unavailable("the CUDA plug-in " + path + " cannot be loaded: " + (text == nullptr ? "no reason" : text) +
                       "; it is built where nvcc is found");
  }
  Plugin plugin;
  plugin.kernels =
      table<kernels::cuda::KernelsFunction*>(library, kernels::cuda::kKernelsSymbol, kernels::cuda::kKernelsVersion);
  plugin.calls = table<cuda::CallsFunction*>(library, cuda::kCallsSymbol, cuda::kCallsVersion);
  if (plugin.kernels == nullptr || plugin.calls == nullptr) {
    return Status(Code::kUnsupported, "the CUDA plug-in " + path + " is of another version; build both together");
  }
  return plugin;
}

}  // namespace sirtaki::device
