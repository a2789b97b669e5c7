// Helpers of the scenarios: requirements, tensors with known values, shared draws.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/world/world.h"

namespace sirtaki::scenarios {

inline void require(bool condition, const std::string& text) {
  if (!condition) {
    throw std::runtime_error(text);
  }
}

inline void require_ok(const Status& status, const std::string& text) {
  require(status.ok(), text + ": " + status.to_string());
}

// A tensor that the test owns.
struct Owned {
  std::vector<float> values;
  TensorView view() {
    return {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size()), DType::kF32, {}};
  }
};

// Values repeat after as many elements, so that few are computed.
inline constexpr std::size_t kPeriod = 17;

// Returns a small integer, so that sums are exact in any order.
inline float value_of(Rank rank, std::uint64_t salt, std::size_t i) {
  return static_cast<float>((static_cast<std::uint64_t>(rank) * 7 + salt * 3 + i) % kPeriod);
}

inline Owned filled(Rank rank, std::uint64_t salt, std::size_t count) {
  Owned tensor;
  tensor.values.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    tensor.values[i] = i < kPeriod ? value_of(rank, salt, i) : tensor.values[i - kPeriod];
  }
  return tensor;
}

inline float sum_over(const std::vector<bool>& contributes, std::uint64_t salt, std::size_t i) {
  float sum = 0;
  for (std::size_t r = 0; r < contributes.size(); ++r) {
    sum += contributes[r] ? value_of(static_cast<Rank>(r), salt, i) : 0.0F;
  }
  return sum;
}

inline void require_sum(const Owned& tensor, const std::vector<bool>& contributes, std::uint64_t salt,
                        const std::string& what) {
  float sums[kPeriod];
  for (std::size_t i = 0; i < std::min(kPeriod, tensor.values.size()); ++i) {
    sums[i] = sum_over(contributes, salt, i);
  }
  for (std::size_t i = 0, place = 0; i < tensor.values.size(); ++i, place = place + 1 == kPeriod ? 0 : place + 1) {
    if (tensor.values[i] != sums[place]) {
      require(false, what + ": element " + std::to_string(i) + " is " + std::to_string(tensor.values[i]) + ", not " +
                         std::to_string(sums[place]));
    }
  }
}

inline std::vector<bool> everybody(int size) {
  return std::vector<bool>(static_cast<std::size_t>(size), true);
}

// Returns the spec of an allreduce in place.
inline engine::OpSpec allreduce(const std::string& name, Owned& tensor) {
  engine::OpSpec spec;
  spec.kind = OpKind::kAllreduce;
  spec.name = name;
  spec.input = tensor.view();
  spec.output = tensor.view();
  spec.dims = {static_cast<std::int64_t>(tensor.values.size())};
  return spec;
}

// Returns a draw that is the same on all ranks: a function of seed, place and salt.
inline std::uint64_t shared_draw(std::uint64_t seed, std::uint64_t place, std::uint64_t salt) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ULL + place * 1000003ULL + salt);
  random.discard(2);
  return random();
}

template <class Random>
std::vector<int> shuffled(int count, Random& random) {
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace sirtaki::scenarios
