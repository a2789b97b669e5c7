// What device code has in common: lanes, warps, blocks, float32 arrays.
//
// For: kernels/*/cuda.cu.
#pragma once

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

// By value: device code cannot refer to a constant of the host.
template <class T>
constexpr T lesser(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T greater(T a, T b) {
  return a < b ? b : a;
}

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
// May be given to a launch function; and may be read in fours.
inline bool is_float(const Feedback& arrays) {
  return arrays.valid() && aligned(arrays.gradient, 4) && aligned(arrays.residual, 4) && aligned(arrays.left, 4);
}
inline bool is_vector(const Feedback& arrays) {
  return aligned(arrays.gradient, 16) && aligned(arrays.residual, 16) && aligned(arrays.left, 16);
}

// Feedback as device code sees it.
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

// Elements [0, 4) of `from`, those from `count` on as +0; read at once where they are all there and `vector` says that
// `from` is a multiple of 16 bytes.
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

// How many come before this one, and how many there are.
struct Ranks {
  std::int32_t before;
  std::int32_t all;
};

}  // namespace sirtaki::kernels::cuda
