// Emulator: CUDA's language for g++. Kernels of kernels/*/cuda.cu are compiled as C++ and run on one thread of a CPU,
// so that their results can be compared with the reference on machines without a GPU.
//
// For tests; included in front of a .cu file (-include). Threads: one. A block is a set of fibers that change places at
// synchronization points of lanes or warps, in an order that set_order() chooses; blocks run one after the other. So a
// missing barrier shows if the order matters; races between blocks and the speed of memory do not show.
// Lanes of a warp that meet in different functions, or that wait for ever, end the program with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// NOLINTBEGIN(bugprone-reserved-identifier)
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier)

namespace sirtaki::emulated {

struct Index {
  unsigned x = 0;
};
struct Place {
  Index thread;
  Index block;
  Index threads;
  Index blocks;
};

// Returns the place of the running thread.
const Place& place();

// Chooses among threads that can run: 0 the first one, 1 the last one, else a random one.
void set_order(unsigned order);

// Runs `kernel` on blocks of threads, a multiple of 32.
void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel);

// Records the kernels that were launched, and the kernels that were loaded ahead.
void note_launched(const void* kernel);
void note_loaded(const void* kernel);
std::size_t launched_kernels();
std::size_t launched_but_not_loaded();
std::size_t loaded_but_not_launched();

// Words of the 32 lanes of a warp; 0 for lanes that have ended. Valid until the next call of the lane.
struct Words {
  const std::uint64_t* of;
  std::uint32_t live;
};
Words meet(const char* function, std::uint64_t word);
void meet_block();

template <class T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}
template <class T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
inline unsigned lane() {
  return place().thread.x % 32;
}

template <class T, class Combine>
T reduce(const char* function, T value, Combine combine) {
  const Words words = meet(function, to_word(value));
  T all = value;
  for (unsigned l = 0; l < 32; ++l) {
    if (l != lane() && (words.live >> l & 1U) != 0) {
      all = combine(all, from_word<T>(words.of[l]));
    }
  }
  return all;
}

}  // namespace sirtaki::emulated

#define threadIdx (::sirtaki::emulated::place().thread)
#define blockIdx (::sirtaki::emulated::place().block)
#define blockDim (::sirtaki::emulated::place().threads)
#define gridDim (::sirtaki::emulated::place().blocks)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(4) uchar4 {
  unsigned char x, y, z, w;
};

// NOLINTBEGIN(bugprone-reserved-identifier)
inline unsigned __ballot_sync(unsigned /*mask*/, bool flag) {
  const auto words = sirtaki::emulated::meet("__ballot_sync", flag ? 1 : 0);
  unsigned bits = 0;
  for (unsigned l = 0; l < 32; ++l) {
    bits |= words.of[l] != 0 ? 1U << l : 0U;
  }
  return bits;
}
inline unsigned __reduce_add_sync(unsigned /*mask*/, unsigned value) {
  return sirtaki::emulated::reduce("__reduce_add_sync", value, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __reduce_min_sync(unsigned /*mask*/, unsigned value) {
  return sirtaki::emulated::reduce("__reduce_min_sync", value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_max_sync(unsigned /*mask*/, unsigned value) {
  return sirtaki::emulated::reduce("__reduce_max_sync", value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
template <class T>
T __shfl_sync(unsigned /*mask*/, T value, int from) {
  const auto words = sirtaki::emulated::meet("__shfl_sync", sirtaki::emulated::to_word(value));
  return sirtaki::emulated::from_word<T>(words.of[from % 32]);
}
template <class T>
T __shfl_down_sync(unsigned /*mask*/, T value, unsigned by) {
  const auto words = sirtaki::emulated::meet("__shfl_down_sync", sirtaki::emulated::to_word(value));
  const unsigned from = sirtaki::emulated::lane() + by;
  return from < 32 ? sirtaki::emulated::from_word<T>(words.of[from]) : value;
}
template <class T>
T __shfl_up_sync(unsigned /*mask*/, T value, unsigned by) {
  const auto words = sirtaki::emulated::meet("__shfl_up_sync", sirtaki::emulated::to_word(value));
  const unsigned lane = sirtaki::emulated::lane();
  return lane >= by ? sirtaki::emulated::from_word<T>(words.of[lane - by]) : value;
}
inline void __syncwarp() {
  sirtaki::emulated::meet("__syncwarp", 0);
}
inline void __syncthreads() {
  sirtaki::emulated::meet_block();
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
// NOLINTEND(bugprone-reserved-identifier)

template <class T>
T atomicAdd(T* to, T value) {  // NOLINT(readability-identifier-naming)
  const T before = *to;
  *to += value;
  return before;
}
