// Training: the model that a process of a simulated elastic job trains, one for each stream: parameters and momentum of
// an optimizer, the place in the order of the samples, and the history of its steps that count.
//
// A step takes the next samples, one a rank. The gradient of a sample is a function of its number in small integers, so
// the exact sum of a step tells which samples are in it. A process that joins gets all of it from another one as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/engine/common/requests.h"

namespace sirtaki::world {

inline constexpr int kStreams = 2;

// A step that counts: the samples begin .. begin + ranks.
struct CountedStep {
  std::uint32_t epoch = 0;
  std::uint32_t ranks = 0;
  std::uint64_t begin = 0;
  std::uint64_t sum = 0;    // digest of the reduced gradients
  std::uint64_t model = 0;  // digest of parameters and momentum behind the step
  bool operator==(const CountedStep&) const = default;
};

class Training {
 public:
  explicit Training(int stream);

  engine::StreamSpec spec() const;
  // Fills the gradients of the next step with those of the sample of this rank.
  void deal(Rank rank, int size);
  TensorView gradient(int tensor);
  int tensors() const;
  std::uint64_t gradients_digest() const;
  // Applies the sums that deal() and a step have left in the gradients. Returns the invariant that they break; empty:
  // none.
  std::string commit(Epoch epoch);

  std::size_t steps() const { return history_.size(); }
  const std::vector<CountedStep>& history() const { return history_; }
  // Digest of parameters and momentum.
  std::uint64_t digest() const;
  // Returns whether every sample up to the last one has been in one step, and in one only.
  bool samples_are_whole() const;

  // Writes the state into as many bytes as every process has for it.
  void save(std::vector<std::byte>& out) const;
  // Reads the state at `at`, and moves `at` behind it.
  void load(ConstBytes in, std::size_t& at);

 private:
  std::uint64_t next_sample() const;

  const int stream_;
  std::vector<std::vector<float>> gradients_;  // indexed by tensor
  std::vector<float> parameters_;
  std::vector<float> momentum_;
  std::vector<CountedStep> history_;
  std::uint32_t dealt_to_ = 0;  // number of ranks of the step for which gradients_ were dealt
};

std::uint64_t digest_of(ConstBytes bytes, std::uint64_t seed = 14695981039346656037ULL);

}  // namespace sirtaki::world
