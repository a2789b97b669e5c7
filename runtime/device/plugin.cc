#include "runtime/device/plugin.h"

#include <dlfcn.h>

namespace sirtaki::device {
namespace {

// Returns a table of the library; null if there is none of that name and version.
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
                       "; the build makes it if it finds nvcc");
  }
  Plugin plugin;
  plugin.kernels =
      table<kernels::cuda::KernelsFunction*>(library, kernels::cuda::kKernelsSymbol, kernels::cuda::kKernelsVersion);
  plugin.calls = table<cuda::CallsFunction*>(library, cuda::kCallsSymbol, cuda::kCallsVersion);
  if (plugin.kernels == nullptr || plugin.calls == nullptr) {
    return Status(Code::kUnsupported,
                  "the CUDA plug-in " + path + " has another version than this library; build both together");
  }
  return plugin;
}

}  // namespace sirtaki::device
