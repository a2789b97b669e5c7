// What the launch functions of all CUDA kernels (kernels/*/cuda.h) have in common.
//
// For: whoever loads the plug-in (kernels/cuda_kernels.h). Shows no CUDA type, so that no other source needs CUDA.
// A launch function queues work on a stream and returns at once. It allocates nothing, waits for nothing and copies
// nothing to the host. All pointers are to device memory, which stays until the stream is done, unless it says so;
// float32 arrays and payloads begin at a multiple of 4 bytes, and with a multiple of 16 they are read faster.
// Threads: any; the caller keeps the stream's device current.
// What is written is byte for byte what the CPU kernel of the same name writes (kernels/*/ref.cc).
#pragma once

namespace sirtaki::kernels::cuda {

// A cudaStream_t; nullptr is the default stream.
using Stream = void*;

// Whether the work was queued. What goes wrong later shows where the stream is waited for.
struct [[nodiscard]] Launch {
  int code = 0;  // a cudaError_t

  bool ok() const { return code == 0; }
};

// cudaErrorInvalidValue: an argument out of range or badly aligned; nothing was queued.
inline constexpr Launch kInvalid{1};

// Payloads that one launch may add up.
inline constexpr int kMostPayloads = 256;

}  // namespace sirtaki::kernels::cuda
