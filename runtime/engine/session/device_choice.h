// DeviceChoice: the GPU of a rank, which is the first GPU with a tensor of the rank that can be opened.
//
// Owned by Session. Threads: any; one thread opens the GPU while the others wait for it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/base/config/config.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/device/device_api.h"
#include "runtime/net/device/nccl/loader.h"

namespace sirtaki::engine {

class DeviceChoice {
 public:
  // Calls `open` with the index of a GPU, until one call has succeeded.
  DeviceChoice(Rank rank, std::function<Status(int index)> open) : rank_(rank), open_(std::move(open)) {}
  void set_rank(Rank rank) { rank_ = rank; }  // before the first use

  // Opens `device` if it is the first GPU; call this before the memory of `tensor` is used. Returns success for the CPU
  // and kInvalidArgument for a second GPU. An error of `open` is returned again for the next tensor on the same GPU.
  Status use(const Device& device, const std::string& tensor);

 private:
  Rank rank_;
  const std::function<Status(int index)> open_;
  std::mutex mutex_;
  int index_ = -1;  // guarded by mutex_, like opened_; -1: no GPU was requested
  Status opened_;
};

// Finds NCCL by means of `open`. Returns an error if `options` or a job of one rank leave no use for NCCL. The first
// call is slow, since it loads a library.
Result<net::nccl::Library> find_nccl(
    const Config::DeviceOptions& options, int size,
    const std::function<Result<net::nccl::Library>(const net::nccl::LoadOptions&)>& open);

// Returns the version of the NCCL library that `options` locate, even if they select transport through host memory.
// Returns an error if NCCL or the CUDA plug-in is missing; both stay loaded.
Result<int> nccl_version(const Config::DeviceOptions& options);

// Loads the CUDA plug-in and opens GPU `index`, which becomes the current device of the calling thread.
Result<std::unique_ptr<device::DeviceApi>> open_cuda_device(int index);

}  // namespace sirtaki::engine
