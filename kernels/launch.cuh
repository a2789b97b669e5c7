// Loads and launches kernels; contains every call of the CUDA runtime that kernels need.
//
// Used by kernels/*/cuda.cu. Threads: any. The tests provide another header of this name (tests/device/emulated/),
// which runs the same kernels on a CPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"

namespace sirtaki::kernels::cuda {

// A multiprocessor holds at most 16 blocks of 128 threads.
inline constexpr std::int64_t kBlocksOfAMultiprocessor = 16;

inline Launch launched(cudaError_t error) {
  return {static_cast<int>(error)};
}

// Launches at most `blocks` blocks, fewer if the device cannot hold as many at a time; kernels therefore stride over
// their grid.
template <class... Parameters, class... Arguments>
Launch launch(void (*kernel)(Parameters...), std::int64_t blocks, unsigned threads, Stream stream,
              const Arguments&... arguments) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess || blocks <= 0) {
    return launched(error);
  }
  const auto grid = static_cast<unsigned>(std::min(blocks, kBlocksOfAMultiprocessor * multiprocessors));
  cudaGetLastError();  // clears an error that an earlier call of this thread left behind
  kernel<<<grid, threads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return launched(cudaGetLastError());
}

// Loads kernels ahead of their first launch, at which CUDA may wait for running work of the device.
template <class... Kernels>
Launch load(Kernels*... kernels) {
  cudaError_t error = cudaSuccess;
  const auto load_one = [&error](auto* kernel) {
    cudaFuncAttributes attributes;
    error = error == cudaSuccess ? cudaFuncGetAttributes(&attributes, kernel) : error;
  };
  (load_one(kernels), ...);
  return launched(error);
}

inline Launch clear(void* data, std::size_t bytes, Stream stream) {
  return launched(bytes == 0 ? cudaSuccess : cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(stream)));
}

}  // namespace sirtaki::kernels::cuda
