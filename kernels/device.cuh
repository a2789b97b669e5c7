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

// Loads elements [0, 4) of `from`; elements from `count` on become +0. Uses one 16-byte load if all four exist and
// `vector` tells that `from` is aligned to 16 bytes.
__device__ inline void load_four(const float* from, std::int64_t count, bool vector, float* to) {
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
__device__ inline void store_four(const float* from, std::int64_t count, bool vector, float* to) {
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

// A warp holds an array in rows of 128 elements: each lane has four consecutive elements of every row. Elements from
// `count` on become +0, and are not stored. kWhole: `count` is large enough for all rows, and `vector` is true.
template <bool kWhole, int kItems>
__device__ void load_rows(const float* from, std::int32_t count, bool vector, float (&to)[kItems]) {
#pragma unroll
  for (int i = 0; i < kItems; i += 4) {
    const std::int32_t at = i * static_cast<int>(kLanes) + 4 * static_cast<int>(lane());
    load_four(from + at, kWhole ? 4 : count - at, kWhole || vector, to + i);
  }
}
template <bool kWhole, int kItems>
__device__ void store_rows(const float (&from)[kItems], std::int32_t count, bool vector, float* to) {
#pragma unroll
  for (int i = 0; i < kItems; i += 4) {
    const std::int32_t at = i * static_cast<int>(kLanes) + 4 * static_cast<int>(lane());
    store_four(from + i, kWhole ? 4 : count - at, kWhole || vector, to + at);
  }
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

  // Loads the rows of a warp that begin with element `first`, of which `count` exist, and stores them to `left`.
  // `vector`: `first` and the arrays are aligned to 16 bytes. A whole aligned piece has one branch, that of the warp:
  // no branch between loads, so that all of them are in flight before the first addition waits for one.
  template <int kItems>
  __device__ void load(std::int64_t first, std::int32_t count, bool vector, float (&a)[kItems]) const {
    vector&& count >= kItems* static_cast<int>(kLanes) ? load_as<true>(first, count, vector, a)
                                                       : load_as<false>(first, count, vector, a);
  }
  template <int kItems>
  __device__ void store(const float (&a)[kItems], std::int64_t first, std::int32_t count, bool vector) const {
    if (left == nullptr) {
      return;
    }
    vector&& count >= kItems* static_cast<int>(kLanes) ? store_rows<true>(a, count, vector, left + first)
                                                       : store_rows<false>(a, count, vector, left + first);
  }

 private:
  template <bool kWhole, int kItems>
  __device__ void load_as(std::int64_t first, std::int32_t count, bool vector, float (&a)[kItems]) const {
    load_rows<kWhole>(gradient + first, count, vector, a);
    if (residual != nullptr) {
      float more[kItems];
      load_rows<kWhole>(residual + first, count, vector, more);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        a[i] += more[i];
      }
    }
#pragma unroll
    for (float& one : a) {
      one = ref::canonical(one);
    }
  }
};

// Consecutive elements that are loaded and stored at once, if they fill 16 bytes.
inline constexpr int kPackBytes = 16;
template <class Word, int kCount>
struct Pack {
  Word at[kCount];
};
template <class Some>
__device__ Some load_pack(const std::byte* from) {
  if constexpr (sizeof(Some) == kPackBytes) {
    return std::bit_cast<Some>(*as<uint4>(from));
  } else {
    return *as<Some>(from);
  }
}
template <class Some>
__device__ void store_pack(const Some& pack, std::byte* to) {
  if constexpr (sizeof(Some) == kPackBytes) {
    *as<uint4>(to) = std::bit_cast<uint4>(pack);
  } else {
    *as<Some>(to) = pack;
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

// Devices lack a 64-bit division. The high half of a product with the inverse, rounded up, is the quotient of numbers
// below 2^48 and divisors from 1 to 2^16: the error of the inverse times the number stays below 2^64.
inline constexpr std::int64_t kMostDivided = std::int64_t{1} << 48;
constexpr std::uint64_t inverse_of(std::int32_t divisor) {
  return divisor == 1 ? 0 : ~std::uint64_t{0} / static_cast<std::uint64_t>(divisor) + 1;
}
__device__ inline std::int64_t quotient(std::int64_t number, std::uint64_t inverse) {
  return inverse == 0 ? number : static_cast<std::int64_t>(__umul64hi(static_cast<std::uint64_t>(number), inverse));
}

// Returns sum / divisor as average() does; `divisor` is a whole number.
__device__ inline float mean_of(float sum, float divisor) {
  return ref::canonical(sum / divisor);
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
