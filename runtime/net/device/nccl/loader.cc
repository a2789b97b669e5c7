#include "runtime/net/device/nccl/loader.h"

#include <dlfcn.h>

#include <utility>

namespace sirtaki::net::nccl {
namespace {

std::string dlerror_text() {
  const char* const text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  // Returns false if the library lacks the symbol.
  template <class Function>
  bool find(const char* symbol, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, symbol));
    return function != nullptr;
  }
  template <class Function>
  void need(const char* symbol, Function*& function) {
    if (!find(symbol, function)) {
      missing_ += (missing_.empty() ? "" : ", ") + std::string(symbol);
    }
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

struct Opened {
  void* library;
  std::string from;
};

Result<Opened> open(const LoadOptions& options) {
  if (void* const library = dlopen(options.name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
    return Opened{library, "the process"};
  }
  const std::string& wanted = options.path.empty() ? options.name : options.path;
  if (void* const library = dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    return Opened{library, wanted};
  }
  return unavailable("NCCL: the process has no " + options.name + ", and " + wanted +
                     " cannot be loaded: " + dlerror_text() +
                     "; install NCCL, or set the path of a library, or choose a backend that needs none");
}

}  // namespace

std::string version_text(int version) {
  // Version 2.8 and older used multiples of 1000.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

Result<Library> load(const LoadOptions& options) {
  SRT_ASSIGN(const Opened opened, open(options));
  Symbols symbols(opened.library);
  Library found;
  found.from = opened.from;
  Api& api = found.api;
  const std::string where = "NCCL of " + found.from;
  if (!symbols.find("ncclGetVersion", api.get_version) || api.get_version(&found.version) != Outcome::kSuccess) {
    return Status(Code::kUnsupported, where + " does not report its version");
  }
  if (found.version < kOldestNccl) {
    return Status(Code::kUnsupported, where + " is version " + version_text(found.version) + ", which is older than " +
                                          version_text(kOldestNccl));
  }
  symbols.need("ncclGetUniqueId", api.get_unique_id);
  symbols.need("ncclCommInitRankConfig", api.comm_init_rank_config);
  symbols.need("ncclCommFinalize", api.comm_finalize);
  symbols.need("ncclCommDestroy", api.comm_destroy);
  symbols.need("ncclCommAbort", api.comm_abort);
  symbols.need("ncclCommGetAsyncError", api.comm_get_async_error);
  symbols.need("ncclGetErrorString", api.get_error_string);
  symbols.need("ncclGetLastError", api.get_last_error);
  symbols.need("ncclGroupStart", api.group_start);
  symbols.need("ncclGroupEnd", api.group_end);
  symbols.need("ncclAllReduce", api.all_reduce);
  symbols.need("ncclReduce", api.reduce);
  symbols.need("ncclBroadcast", api.broadcast);
  symbols.need("ncclAllGather", api.all_gather);
  symbols.need("ncclReduceScatter", api.reduce_scatter);
  symbols.need("ncclSend", api.send);
  symbols.need("ncclRecv", api.recv);
  if (!symbols.missing().empty()) {
    return Status(Code::kUnsupported,
                  where + ", version " + version_text(found.version) + ", lacks " + symbols.missing());
  }
  return found;
}

}  // namespace sirtaki::net::nccl
