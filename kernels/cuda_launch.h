// The contract and the types shared by the launch functions of all CUDA kernels (kernels/*/cuda.h).
//
// Exposes no CUDA type, so that users of the plug-in (kernels/cuda_kernels.h) build without CUDA.
// A launch function queues work on a stream and returns at once. It allocates nothing, waits for nothing and copies
// nothing to the host. All pointers are to device memory, which must stay valid until the stream is done, unless stated
// otherwise. float32 arrays and payloads are aligned to 4 bytes; alignment to 16 bytes makes reads faster.
// Threads: any; the caller keeps the stream's device current.
// The output is byte for byte that of the CPU kernel of the same name (kernels/*/ref.cc).
#pragma once

namespace sirtaki::kernels::cuda {

// A cudaStream_t; nullptr is the default stream.
using Stream = void*;

// Tells whether the work was queued. Errors of the work itself are reported where the stream is synchronized.
struct [[nodiscard]] Launch {
  int code = 0;  // a cudaError_t

  bool ok() const { return code == 0; }
};

// cudaErrorInvalidValue: an argument out of range or badly aligned; nothing was queued.
inline constexpr Launch kInvalid{1};

// The largest number of payloads that one launch sums.
inline constexpr int kMostPayloads = 256;

}  // namespace sirtaki::kernels::cuda
