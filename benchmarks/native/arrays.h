// Arrays of 64 MiB, larger than the caches of most machines, for benchmarks of kernels.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace sirtaki::kernels::bench {

inline constexpr std::int64_t kElements = std::int64_t{1} << 24;

inline std::vector<float> normal_numbers(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  std::vector<float> numbers(static_cast<std::size_t>(kElements));
  for (float& number : numbers) {
    number = normal(random);
  }
  return numbers;
}

// Made once: random numbers take longer than a benchmark.
inline const std::vector<float>& gradient() {
  static const std::vector<float> numbers = normal_numbers(1);
  return numbers;
}

template <class T>
std::byte* bytes(std::vector<T>& array) {
  return reinterpret_cast<std::byte*>(array.data());
}
template <class T>
const std::byte* bytes(const std::vector<T>& array) {
  return reinterpret_cast<const std::byte*>(array.data());
}

// Bytes of gradient a second.
inline void count_gradient(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * kElements * 4);
}

}  // namespace sirtaki::kernels::bench
