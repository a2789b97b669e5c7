// A library that loads like the CUDA plug-in; without FAKE_CALLS it has the table of kernels only.
#include "kernels/cuda_kernels.h"
#include "runtime/device/cuda_calls.h"

namespace {

template <class Table>
constexpr Table of_version(std::uint32_t version) {
  Table table{};
  table.version = version;
  return table;
}

constexpr auto kKernels =
    of_version<sirtaki::kernels::cuda::Kernels>(sirtaki::kernels::cuda::kKernelsVersion - FAKE_OLDER);

}  // namespace

const sirtaki::kernels::cuda::Kernels* sirtaki_cuda_kernels() {
  return &kKernels;
}

#ifdef FAKE_CALLS
namespace {

constexpr auto kCalls = of_version<sirtaki::device::cuda::DeviceCalls>(sirtaki::device::cuda::kCallsVersion);

}  // namespace

const sirtaki::device::cuda::DeviceCalls* sirtaki_cuda_device() {
  return &kCalls;
}
#endif
