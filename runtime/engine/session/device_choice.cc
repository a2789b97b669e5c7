#include "runtime/engine/session/device_choice.h"

#include <utility>

#include "runtime/device/cuda_device.h"

namespace sirtaki::engine {

Status DeviceChoice::use(const Device& device, const std::string& tensor) {
  if (device.type == DeviceType::kCpu) {
    return {};
  }
  const std::string what = tensor.empty() ? "an unnamed tensor" : "tensor '" + tensor + "'";
  const std::lock_guard lock(mutex_);
  if (index_ < 0 || (!opened_.ok() && index_ != device.index)) {
    index_ = device.index;
    opened_ = open_(index_);
  }
  if (index_ != device.index) {
    return {Code::kInvalidArgument,
            what + " is on " + device_name(device) + ", and rank " + std::to_string(rank_) + " works with " +
                device_name({DeviceType::kCuda, index_}) +
                "; a rank has one GPU: choose it with torch.cuda.set_device(local_rank()) before anything else",
            {rank_, tensor}};
  }
  return opened_.with_context(what + " is on " + device_name(device));
}

Result<net::nccl::Library> find_nccl(
    const Config::DeviceOptions& options, int size,
    const std::function<Result<net::nccl::Library>(const net::nccl::LoadOptions&)>& open) {
  if (size == 1 || options.data == "host") {
    return unavailable("NCCL is not used");
  }
  net::nccl::LoadOptions where;
  where.path = options.nccl_library;
  return open(where);
}

Result<int> nccl_version(const Config::DeviceOptions& options) {
  SRT_TRY(device::load_plugin().status());
  net::nccl::LoadOptions where;
  where.path = options.nccl_library;
  SRT_ASSIGN(const net::nccl::Library library, net::nccl::load(where));
  return library.version;
}

Result<std::unique_ptr<device::DeviceApi>> open_cuda_device(int index) {
  SRT_ASSIGN(const device::Plugin plugin, device::load_plugin());
  SRT_ASSIGN(std::unique_ptr<device::DeviceApi> device, device::CudaDevice::open(plugin, index));
  return device;
}

}  // namespace sirtaki::engine
