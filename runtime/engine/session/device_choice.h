// DeviceChoice: which GPU a rank works with: the first that one of its tensors is on and that can be opened.
//
// Owned by Session. Threads: any; one opens the GPU while others wait for that.
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
  // `open` is called with the index of a GPU until it has opened one.
  DeviceChoice(Rank rank, std::function<Status(int index)> open) : rank_(rank), open_(std::move(open)) {}

  // Before memory there is used, by a tensor of this name. Nothing to do for the CPU. kInvalidArgument for another GPU
  // than the one that is open; an error of open() is given again to the next tensor of the same GPU.
  Status use(const Device& device, const std::string& tensor);

 private:
  const Rank rank_;
  const std::function<Status(int index)> open_;
  std::mutex mutex_;
  int index_ = -1;  // guarded by mutex_, as is the next; -1: none was asked for
  Status opened_;
};

// By `open`; an error, too, where `options` or the job's size leave no use for NCCL. Takes a while the first time.
Result<net::nccl::Library> find_nccl(
    const Config::DeviceOptions& options, int size,
    const std::function<Result<net::nccl::Library>(const net::nccl::LoadOptions&)>& open);

// Of what is found by `options`, also where they choose the host's memory; an error where there is no CUDA plug-in
// either. Both stay loaded.
Result<int> nccl_version(const Config::DeviceOptions& options);

// Looks for the CUDA plug-in; the calling thread enters the device.
Result<std::unique_ptr<device::DeviceApi>> open_cuda_device(int index);

}  // namespace sirtaki::engine
