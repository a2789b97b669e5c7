// CudaDevice: DeviceApi for one GPU, on top of the CUDA plug-in.
//
// Owner: the data plane of a rank. Threads: as DeviceApi; the object is immutable after open().
#pragma once

#include <memory>
#include <string>

#include "runtime/device/device_api.h"
#include "runtime/device/plugin.h"

namespace sirtaki::device {

class CudaDevice final : public DeviceApi {
 public:
  // Opens device `index`, enters the calling thread, and loads all kernels, because lazy loading at their first use
  // may synchronize with the device. kUnavailable if there is no such device. A device without kernels opens, too.
  static Result<std::unique_ptr<CudaDevice>> open(const Plugin& plugin, int index);

  Status enter_thread() override;
  Result<Before> visit() override;
  void leave(const Before& before) override;
  const kernels::cuda::Kernels& kernels() const override { return kernels_; }
  Status kernels_ready() const override { return kernels_ready_; }
  Result<Stream> make_stream(Priority priority) override;
  Result<Event> make_event() override;
  Result<std::byte*> allocate(Place place, std::size_t bytes) override;
  void destroy(Stream stream) override;
  void destroy(Event event) override;
  void release(Place place, std::byte* data) override;
  Status record(Event event, Stream stream) override;
  Status record_all(Event event) override;
  Status wait(Stream stream, Event event) override;
  Result<bool> done(Event event) override;
  Status copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) override;

 private:
  CudaDevice(const Plugin& plugin, int index) : kernels_(*plugin.kernels), calls_(*plugin.calls), index_(index) {}
  Status status(int code, const char* action) const;

  const kernels::cuda::Kernels& kernels_;
  const cuda::DeviceCalls& calls_;
  const int index_;
  Status kernels_ready_;
};

}  // namespace sirtaki::device
