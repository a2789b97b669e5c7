// Emulator: CUDA's language for g++. Kernels of kernels/*/cuda.cu are compiled as C++ and run on one thread of a CPU,
// so that their results can be compared with the reference on machines without a GPU.
//
// For tests; included in front of a .cu file (-include). Threads: one. A block is a set of fibers that change places at
// synchronization points of lanes or warps, in an order that set_order() chooses; blocks run one after the other. So a
// missing barrier shows if the order matters; races between blocks and the speed of memory do not show.
// Lanes of a warp that meet in different functions or with a mask that leaves out one of them, that read from a lane
// that has ended, or that wait for ever, end the program with a message.
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

// Words of the lanes of a warp that have met; 0 for lanes that have ended. Valid until the next call of the lane.
struct Words {
  const std::uint64_t* of;
  std::uint32_t met;
};
// `mask` must name all lanes that have not ended, since all of them meet here; on a device it could leave out some.
Words meet(const char* function, std::uint32_t mask, std::uint64_t word);
// Returns the word of a lane that has met; ends the program if it has ended, which gives any value on a device.
std::uint64_t word_of(const char* function, const Words& words, unsigned lane);
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
T reduce(const char* function, unsigned mask, T value, Combine combine) {
  const Words words = meet(function, mask, to_word(value));
  T all = value;
  for (unsigned l = 0; l < 32; ++l) {
    if (l != lane() && (words.met >> l & 1U) != 0) {
      all = combine(all, from_word<T>(words.of[l]));
    }
  }
  return all;
}

// Returns the value of lane `from`, the own one if there is no such lane.
template <class T>
T shuffle(const char* function, unsigned mask, T value, unsigned from) {
  const Words words = meet(function, mask, to_word(value));
  return from < 32 ? from_word<T>(word_of(function, words, from)) : value;
}

}  // namespace sirtaki::emulated

#define threadIdx (::sirtaki::emulated::place().thread)
#define blockIdx (::sirtaki::emulated::place().block)
#define blockDim (::sirtaki::emulated::place().threads)
#define gridDim (::sirtaki::emulated::place().blocks)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(4) uchar4 {
  unsigned char x, y, z, w;
};

// NOLINTBEGIN(bugprone-reserved-identifier)
inline unsigned __ballot_sync(unsigned mask, bool flag) {
  const auto words = sirtaki::emulated::meet("__ballot_sync", mask, flag ? 1 : 0);
  unsigned bits = 0;
  for (unsigned l = 0; l < 32; ++l) {
    bits |= words.of[l] != 0 ? 1U << l : 0U;
  }
  return bits;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return sirtaki::emulated::reduce("__reduce_add_sync", mask, value, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return sirtaki::emulated::reduce("__reduce_min_sync", mask, value,
                                   [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return sirtaki::emulated::reduce("__reduce_max_sync", mask, value,
                                   [](unsigned a, unsigned b) { return a > b ? a : b; });
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return sirtaki::emulated::shuffle("__shfl_sync", mask, value, static_cast<unsigned>(from) % 32);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  return sirtaki::emulated::shuffle("__shfl_down_sync", mask, value, sirtaki::emulated::lane() + by);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  return sirtaki::emulated::shuffle("__shfl_up_sync", mask, value, sirtaki::emulated::lane() - by);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by) {
  return sirtaki::emulated::shuffle("__shfl_xor_sync", mask, value,
                                    sirtaki::emulated::lane() ^ static_cast<unsigned>(by));
}
inline void __syncwarp(unsigned mask = ~0U) {
  sirtaki::emulated::meet("__syncwarp", mask, 0);
}
inline void __syncthreads() {
  sirtaki::emulated::meet_block();
}
inline std::uint64_t __umul64hi(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{a} * b >> 64);
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
