#include "runtime/device/cuda_device.h"

namespace sirtaki::device {
namespace {

// Returns true if the plug-in has no code for the device, or PTX that its driver cannot compile.
bool lacks_code(int error) {
  switch (error) {
    case 98:   // cudaErrorInvalidDeviceFunction
    case 209:  // cudaErrorNoKernelImageForDevice
    case 218:  // cudaErrorInvalidPtx
    case 221:  // cudaErrorJitCompilerNotFound
    case 222:  // cudaErrorUnsupportedPtxVersion
    case 223:  // cudaErrorJitCompilationDisabled
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const Plugin& plugin, int index) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(plugin, index));
  int count = 0;
  SRT_TRY(device->status(device->calls_.count_devices(&count), "looking for devices"));
  if (index < 0 || index >= count) {
    return unavailable("there is no CUDA device " + std::to_string(index) + "; there are " + std::to_string(count));
  }
  SRT_TRY(device->enter_thread());
  const int loaded = device->kernels_.load().code;
  device->kernels_ready_ = device->status(loaded, "loading the kernels");
  if (lacks_code(loaded)) {
    device->kernels_ready_ =
        unavailable(std::string(device->kernels_ready_.text()) +
                    ". This build has no kernels for this GPU: build the package with its architecture in "
                    "SIRTAKI_CUDA_ARCHITECTURES");
    return device;
  }
  SRT_TRY(device->kernels_ready_);
  return device;
}

Status CudaDevice::status(int code, const char* action) const {
  if (code == 0) {
    return {};
  }
  return {code == cuda::kOutOfMemory ? Code::kExhausted : Code::kUnavailable,
          "CUDA device " + std::to_string(index_) + ": " + action + ": " + calls_.error_text(code)};
}

Status CudaDevice::enter_thread() {
  return status(calls_.enter_thread(index_), "entering a thread");
}

Result<Before> CudaDevice::visit() {
  Before before;
  SRT_TRY(
      status(calls_.visit_thread(index_, &before.device, &before.capture_mode), "entering a thread of the program"));
  return before;
}

void CudaDevice::leave(const Before& before) {
  calls_.leave_thread(before.device, before.capture_mode);
}

Result<Stream> CudaDevice::make_stream(Priority priority) {
  Stream stream;
  SRT_TRY(status(calls_.make_stream(priority == Priority::kHigh, &stream.native), "making a stream"));
  return stream;
}

Result<Event> CudaDevice::make_event() {
  Event event;
  SRT_TRY(status(calls_.make_event(&event.native), "making an event"));
  return event;
}

Result<std::byte*> CudaDevice::allocate(Place place, std::size_t bytes) {
  void* data = nullptr;
  const bool pinned = place == Place::kPinned;
  const int code = pinned ? calls_.allocate_pinned(&data, bytes) : calls_.allocate_device(&data, bytes);
  SRT_TRY(status(code, pinned ? "allocating pinned memory" : "allocating memory"));
  return static_cast<std::byte*>(data);
}

// Release functions ignore errors: CUDA reports failures of earlier work there, which the waiters of that work receive.
void CudaDevice::destroy(Stream stream) {
  calls_.destroy_stream(stream.native);
}

void CudaDevice::destroy(Event event) {
  calls_.destroy_event(event.native);
}

void CudaDevice::release(Place place, std::byte* data) {
  place == Place::kPinned ? calls_.release_pinned(data) : calls_.release_device(data);
}

Status CudaDevice::record(Event event, Stream stream) {
  return status(calls_.record(event.native, stream.native), "recording an event");
}

Status CudaDevice::record_all(Event event) {
  return status(calls_.record_all(event.native), "recording an event");
}

Status CudaDevice::wait(Stream stream, Event event) {
  return status(calls_.wait(stream.native, event.native), "waiting for an event");
}

Result<bool> CudaDevice::done(Event event) {
  bool happened = false;
  SRT_TRY(status(calls_.query(event.native, &happened), "work"));
  return happened;
}

Status CudaDevice::copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  return status(calls_.copy(stream.native, to, from, bytes), "copying");
}

}  // namespace sirtaki::device
