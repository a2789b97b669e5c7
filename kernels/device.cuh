// Helpers of device code: lanes, warps, blocks, float32 arrays. Used by kernels/*/cuda.cu.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/feedback.h"
#include "kernels/half/elements.h"

namespace sirtaki::kernels::cuda {

inline constexpr unsigned kAll = 0xFFFFFFFFU;
inline constexpr unsigned kLanes = 32;

__device__ inline unsigned lane() {
  return threadIdx.x % kLanes;
}
__device__ inline unsigned warp() {
  return threadIdx.x / kLanes;
}
__device__ inline unsigned lanes_below() {
  return (1U << lane()) - 1;
}

// These take values, not references: device code cannot refer to a constant of the host.
template <class T>
constexpr T lesser(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T greater(T a, T b) {
  return a < b ? b : a;
}

// Combines the values of all lanes of a warp, by exchanges between them.
template <class Combine>
__device__ std::uint32_t over_lanes(std::uint32_t value, Combine combine) {
#pragma unroll
  for (int distance = static_cast<int>(kLanes) / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAll, value, distance));
  }
  return value;
}
// The sum, minimum and maximum over the lanes of a warp. Devices of compute capability 8.0 have instructions for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
__device__ inline std::uint32_t warp_sum(std::uint32_t value) {
  return over_lanes(value, [](std::uint32_t a, std::uint32_t b) { return a + b; });
}
__device__ inline std::uint32_t warp_min(std::uint32_t value) {
  return over_lanes(value, [](std::uint32_t a, std::uint32_t b) { return lesser(a, b); });
}
__device__ inline std::uint32_t warp_max(std::uint32_t value) {
  return over_lanes(value, [](std::uint32_t a, std::uint32_t b) { return greater(a, b); });
}
#else
__device__ inline std::uint32_t warp_sum(std::uint32_t value) {
  return __reduce_add_sync(kAll, value);
}
__device__ inline std::uint32_t warp_min(std::uint32_t value) {
  return __reduce_min_sync(kAll, value);
}
__device__ inline std::uint32_t warp_max(std::uint32_t value) {
  return __reduce_max_sync(kAll, value);
}
#endif

template <class T>
__device__ T* as(std::byte* data) {
  return reinterpret_cast<T*>(data);
}
template <class T>
__device__ const T* as(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}

inline bool aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}
// is_float() tells whether a launch function accepts the arrays, is_vector() whether they can be read four floats at a
// time.
inline bool is_float(const Feedback& arrays) {
  return arrays.valid() && aligned(arrays.gradient, 4) && aligned(arrays.residual, 4) && aligned(arrays.left, 4);
}
inline bool is_vector(const Feedback& arrays) {
  return aligned(arrays.gradient, 16) && aligned(arrays.residual, 16) && aligned(arrays.left, 16);
}

// The arrays of Feedback with the types of device code.
struct Arrays {
  const float* gradient;
  const float* residual;
  float* left;

  explicit Arrays(const Feedback& arrays)
      : gradient(reinterpret_cast<const float*>(arrays.gradient)),
        residual(reinterpret_cast<const float*>(arrays.residual)),
        left(reinterpret_cast<float*>(arrays.left)) {}

  __device__ float element(std::int64_t i) const {
    return ref::canonical(residual == nullptr ? gradient[i] : gradient[i] + residual[i]);
  }
};

// Loads elements [0, 4) of `from`; elements from `count` on become +0. Uses one 16-byte load if all four exist and
// `vector` tells that `from` is aligned to 16 bytes.
__device__ inline void load_four(const float* from, std::int64_t count, bool vector, float (&to)[4]) {
  if (vector && count >= 4) {
    const float4 four = __ldcs(reinterpret_cast<const float4*>(from));
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    to[j] = j < count ? from[j] : 0.0F;
  }
}
__device__ inline void store_four(const float (&from)[4], std::int64_t count, bool vector, float* to) {
  if (vector && count >= 4) {
    __stcs(reinterpret_cast<float4*>(to), float4{from[0], from[1], from[2], from[3]});
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < count) {
      to[j] = from[j];
    }
  }
}

// The first piece of an array that a thread or a warp works on, and the stride to its next one.
__device__ inline std::int64_t first_thread() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t all_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}
__device__ inline std::int64_t first_warp() {
  return first_thread() / kLanes;
}
__device__ inline std::int64_t all_warps() {
  return all_threads() / kLanes;
}

constexpr std::int64_t pieces(std::int64_t n, std::int64_t size) {
  return (n + size - 1) / size;
}

// The number of elements before this one, and the number of all elements.
struct Ranks {
  std::int32_t before;
  std::int32_t all;
};

// Returns the sum of `value` over the preceding threads of the block, and over all of them. scratch: kWarps words of
// shared memory. Ends with a barrier.
struct Sums {
  std::uint32_t before;
  std::uint32_t all;
};
template <int kWarps>
__device__ Sums block_sums(std::uint32_t value, std::uint32_t (&scratch)[kWarps]) {
  std::uint32_t up_to_here = value;
#pragma unroll
  for (unsigned step = 1; step < kLanes; step *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, up_to_here, step);
    up_to_here += lane() >= step ? below : 0;
  }
  if (lane() == kLanes - 1) {
    scratch[warp()] = up_to_here;
  }
  __syncthreads();
  Sums sums{up_to_here - value, 0};
  for (unsigned w = 0; w < kWarps; ++w) {
    sums.before += w < warp() ? scratch[w] : 0;
    sums.all += scratch[w];
  }
  __syncthreads();
  return sums;
}

// Numbers of a sparse payload are aligned to 2 bytes only, so a float32 is read and written in halves.
__device__ inline float load_bits(const std::uint16_t* from, float /*kind*/) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(from[0]) | static_cast<std::uint32_t>(from[1]) << 16);
}
__device__ inline std::uint16_t load_bits(const std::uint16_t* from, std::uint16_t /*kind*/) {
  return from[0];
}
__device__ inline void store_bits(float value, std::uint16_t* to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  to[0] = static_cast<std::uint16_t>(bits);
  to[1] = static_cast<std::uint16_t>(bits >> 16);
}
__device__ inline void store_bits(std::uint16_t bits, std::uint16_t* to) {
  to[0] = bits;
}

}  // namespace sirtaki::kernels::cuda
