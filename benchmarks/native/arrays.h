// Arrays of 64 MiB, larger than the caches of most machines, for benchmarks of kernels. They begin with a cache line,
// as those of frameworks do.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <vector>

namespace sirtaki::kernels::bench {

inline constexpr std::int64_t kElements = std::int64_t{1} << 24;

template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>& /*other*/) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, std::size_t /*n*/) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator& /*other*/) const { return true; }
  static constexpr std::align_val_t kLine{64};
};
using Floats = std::vector<float, LineAllocator<float>>;

inline Floats normal_numbers(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  Floats numbers(static_cast<std::size_t>(kElements));
  for (float& number : numbers) {
    number = normal(random);
  }
  return numbers;
}

// Makes the array once, because random numbers take longer than a benchmark.
inline const Floats& gradient() {
  static const Floats numbers = normal_numbers(1);
  return numbers;
}

template <class T, class Allocator>
std::byte* bytes(std::vector<T, Allocator>& array) {
  return reinterpret_cast<std::byte*>(array.data());
}
template <class T, class Allocator>
const std::byte* bytes(const std::vector<T, Allocator>& array) {
  return reinterpret_cast<const std::byte*>(array.data());
}

// Sets the rate: bytes of gradient a second.
inline void count_gradient(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * kElements * 4);
}

}  // namespace sirtaki::kernels::bench
