#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <stdexcept>

#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

std::size_t most = std::size_t{1} << 20;

void must(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
  }
}

const kernels::cuda::Kernels* load() {
  // Found beside the program or in the build's folder. Never closed: its functions are used until the end.
  void* const plugin = dlopen("libsirtaki_cuda.so", RTLD_NOW | RTLD_LOCAL);
  void* const symbol = plugin == nullptr ? nullptr : dlsym(plugin, kernels::cuda::kKernelsSymbol);
  if (symbol == nullptr) {
    throw std::runtime_error(std::string("no plug-in: ") + dlerror());
  }
  const auto* table = reinterpret_cast<kernels::cuda::KernelsFunction*>(symbol)();
  if (table->version != kernels::cuda::kKernelsVersion) {
    throw std::runtime_error("the plug-in is of another version");
  }
  return table;
}

}  // namespace

std::string missing() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    return std::string("no CUDA device: ") + cudaGetErrorString(error);
  }
  return devices == 0 ? "no CUDA device" : "";
}

const kernels::cuda::Kernels& kernels() {
  static const kernels::cuda::Kernels* const kTable = load();
  return *kTable;
}

std::size_t most_elements() {
  return most;
}

void set_most_elements(std::size_t elements) {
  most = elements;
}

int orders() {
  return 1;
}
void set_order(int /*order*/) {}

void* allocate(std::size_t bytes) {
  void* data = nullptr;
  must(cudaMalloc(&data, bytes));
  return data;
}
void release(void* data) {
  must(cudaFree(data));
}
void to_device(void* to, const void* from, std::size_t bytes) {
  must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
void to_host(void* to, const void* from, std::size_t bytes) {
  must(cudaDeviceSynchronize());
  must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace sirtaki::device
