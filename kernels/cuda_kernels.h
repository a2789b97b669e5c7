// All CUDA kernels, as the plug-in libsirtaki_cuda.so shows them: the only symbol that it exports.
//
// For: whoever loads it at run time, so that nothing else is linked with CUDA. What each does: kernels/*/cuda.h.
#pragma once

#include <cstdint>

#include "kernels/cuda_launch.h"
#include "kernels/group_topk/cuda.h"

namespace sirtaki::kernels::cuda {

// Of the table and of what its functions take: a loader refuses a plug-in with another one.
inline constexpr std::uint32_t kKernelsVersion = 1;

struct Kernels {
  std::uint32_t version;
  Launch (*group_topk_encode)(const GroupTopkEncode& args, Stream stream);
  Launch (*group_topk_sum)(const GroupTopkSum& args, Stream stream);
};

// Name and type of the exported function.
inline constexpr char kKernelsSymbol[] = "sirtaki_cuda_kernels";
using KernelsFunction = const Kernels*();

}  // namespace sirtaki::kernels::cuda

extern "C" __attribute__((visibility("default"))) const sirtaki::kernels::cuda::Kernels* sirtaki_cuda_kernels();
