#include <cstdlib>
#include <cstring>

#include "tests/device/emulator.h"
#include "tests/device/machine.h"

namespace sirtaki::device {

std::string missing() {
  return "";
}

const kernels::cuda::Kernels& kernels() {
  return *sirtaki_cuda_kernels();
}

std::size_t most_elements() {
  return 20000;
}

int orders() {
  return 3;
}
void set_order(int order) {
  emulated::set_order(static_cast<unsigned>(order));
}

void* allocate(std::size_t bytes) {
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}
void release(void* data) {
  std::free(data);
}
void to_device(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void to_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace sirtaki::device
