// A training for tests of local updates: a few tensors that are drawn towards targets, with noise that depends on rank
// and step, by SGD with momentum. A training is a function of its options, so that runs can be compared bit by bit.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/local_updates/updater.h"

namespace sirtaki::world {

struct TrainingOptions {
  std::vector<std::int64_t> sizes = {3, 40, 0, 17, 64, 1, 25};
  bool same_data = false;  // all ranks use the same data
  float rate = 0.05F;
  float momentum = 0.5F;
  std::uint64_t seed = 1;
  bool integers = false;  // steps of whole numbers, whose sums are exact
};

class Training {
 public:
  Training(const TrainingOptions& options, Rank rank) : options_(options), rank_(rank) {
    rate = options.rate;
    for (std::size_t t = 0; t < options.sizes.size(); ++t) {
      tensors.emplace_back(static_cast<std::size_t>(options.sizes[t]));
      for (std::size_t i = 0; i < tensors[t].size(); ++i) {
        tensors[t][i] = options.integers ? static_cast<float>((t * 7 + i) % 32) : noise(0, t, i, 0) + 0.5F;
      }
      momentum_.emplace_back(tensors[t].size());
    }
  }

  // Takes one step of the optimizer; `averaged`: with gradients that are the same on all ranks.
  void step(bool averaged = false) {
    ++steps_;
    const int who = averaged || options_.same_data ? 0 : rank_;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (std::size_t i = 0; i < tensors[t].size(); ++i) {
        if (options_.integers) {
          tensors[t][i] += static_cast<float>(static_cast<int>(bits(who, t, i, steps_) % 2001) - 1000) * 4.0F;
          continue;
        }
        const float target = 0.01F * static_cast<float>(i) - 0.2F * static_cast<float>(who);
        const float gradient = tensors[t][i] - target + noise(who, t, i, steps_);
        momentum_[t][i] = options_.momentum * momentum_[t][i] + gradient;
        tensors[t][i] -= rate * momentum_[t][i];
      }
    }
  }
  void reset_optimizer() {
    for (auto& momentum : momentum_) {
      std::fill(momentum.begin(), momentum.end(), 0.0F);
    }
  }

  double loss() const {
    double sum = 0;
    for (const auto& tensor : tensors) {
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        const double away = tensor[i] - 0.01 * static_cast<double>(i);
        sum += away * away;
      }
    }
    return sum;
  }

  local_updates::LocalModel model(int fragments, std::vector<local_updates::LocalBuffer> buffers = {}) {
    std::vector<local_updates::LocalTensor> list;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      local_updates::LocalTensor tensor;
      tensor.name = "layer" + std::to_string(t);
      tensor.view = {reinterpret_cast<std::byte*>(tensors[t].data()),
                     static_cast<std::int64_t>(tensors[t].size()),
                     DType::kF32,
                     {}};
      list.push_back(std::move(tensor));
    }
    auto model = local_updates::lay_out(std::move(list), std::move(buffers), fragments);
    SRT_CHECK(model);
    return std::move(*model);
  }

  std::vector<std::vector<float>> tensors;
  float rate = 0;

 private:
  std::uint64_t bits(int who, std::size_t t, std::size_t i, std::int64_t step) const {
    std::uint64_t x = options_.seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(who) * 1000003ULL;
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(step)}) {
      x = (x ^ part) * 0xbf58476d1ce4e5b9ULL;
      x ^= x >> 29;
    }
    return x * 0x94d049bb133111ebULL >> 8;
  }
  float noise(int who, std::size_t t, std::size_t i, std::int64_t step) const {
    return static_cast<float>(static_cast<double>(bits(who, t, i, step) % 65536) / 65536.0 - 0.5);
  }

  const TrainingOptions options_;
  const Rank rank_;
  std::int64_t steps_ = 0;
  std::vector<std::vector<float>> momentum_;
};

inline void require(bool condition, const std::string& text) {
  if (!condition) {
    throw std::runtime_error(text);
  }
}

// Returns the value of a call that must succeed.
template <class T>
T must(Result<T> result) {
  require(result.ok(), result.status().to_string());
  return std::move(*result);
}
inline void must(const Status& status) {
  require(status.ok(), status.to_string());
}

// Returns options with the interval given as text.
inline local_updates::LocalOptions local_options(const std::string& interval, int fragments = 1) {
  local_updates::LocalOptions options;
  options.interval = must(local_updates::parse_interval(interval));
  options.fragments = fragments;
  return options;
}

inline std::unique_ptr<local_updates::LocalUpdater> updater_of(const local_updates::LocalOptions& options,
                                                               local_updates::LocalModel model,
                                                               local_updates::LocalExchange& exchange,
                                                               Logger* log = nullptr) {
  return must(local_updates::LocalUpdater::make(options, std::move(model), exchange, log));
}

}  // namespace sirtaki::world
