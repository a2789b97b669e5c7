#include "tests/world/elastic/training.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/base/check.h"

namespace sirtaki::world {
namespace {

constexpr std::size_t kMostSteps = 16;

// Sizes of the tensors of each stream: some share a partition, some are cut.
std::vector<std::size_t> sizes_of(int stream) {
  return stream == 0 ? std::vector<std::size_t>{5, 200, 3} : std::vector<std::size_t>{7};
}

float gradient_of(std::uint64_t sample, int stream, std::size_t element) {
  return static_cast<float>((sample * sample + 31 * sample + static_cast<std::uint64_t>(stream) * 17 + element * 7) %
                            257);
}

template <class T>
void append(std::vector<std::byte>& out, std::span<const T> values) {
  const ConstBytes bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void take(ConstBytes in, std::size_t& at, std::span<T> values) {
  SRT_CHECK(at + values.size_bytes() <= in.size());
  std::memcpy(values.data(), in.data() + at, values.size_bytes());
  at += values.size_bytes();
}

}  // namespace

std::uint64_t digest_of(ConstBytes bytes, std::uint64_t seed) {
  for (const std::byte byte : bytes) {
    seed = (seed ^ static_cast<std::uint64_t>(byte)) * 1099511628211ULL;
  }
  return seed;
}

Training::Training(int stream) : stream_(stream) {
  std::size_t elements = 0;
  for (const std::size_t size : sizes_of(stream)) {
    gradients_.emplace_back(size);
    elements += size;
  }
  parameters_.resize(elements);
  momentum_.resize(elements);
}

engine::StreamSpec Training::spec() const {
  engine::StreamSpec spec;
  spec.name = "optimizer " + std::to_string(stream_);
  spec.reduce_op = ReduceOp::kSum;
  spec.first_step = steps();
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    spec.tensors.push_back(
        {"layer" + std::to_string(i), {static_cast<std::int64_t>(gradients_[i].size())}, {}, DType::kF32, {}});
  }
  return spec;
}

std::uint64_t Training::next_sample() const {
  return history_.empty() ? 0 : history_.back().begin + history_.back().ranks;
}

void Training::deal(Rank rank, int size) {
  dealt_to_ = static_cast<std::uint32_t>(size);
  const std::uint64_t sample = next_sample() + static_cast<std::uint64_t>(rank);
  std::size_t element = 0;
  for (std::vector<float>& tensor : gradients_) {
    for (float& value : tensor) {
      value = gradient_of(sample, stream_, element++);
    }
  }
}

TensorView Training::gradient(int tensor) {
  std::vector<float>& values = gradients_[static_cast<std::size_t>(tensor)];
  return {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size()), DType::kF32, {}};
}

int Training::tensors() const {
  return static_cast<int>(gradients_.size());
}

std::uint64_t Training::gradients_digest() const {
  std::uint64_t digest = dealt_to_;
  for (const std::vector<float>& tensor : gradients_) {
    digest = digest_of(std::as_bytes(std::span(tensor)), digest);
  }
  return digest;
}

std::string Training::commit(Epoch epoch) {
  const std::uint64_t begin = next_sample();
  std::size_t element = 0;
  for (const std::vector<float>& tensor : gradients_) {
    for (const float sum : tensor) {
      float expected = 0;
      for (std::uint32_t rank = 0; rank < dealt_to_; ++rank) {
        expected += gradient_of(begin + rank, stream_, element);
      }
      if (sum != expected) {
        return "V3, V5: element " + std::to_string(element) + " of step " + std::to_string(steps()) + " of stream " +
               std::to_string(stream_) + " is " + std::to_string(sum) + ", but the samples from " +
               std::to_string(begin) + " on make " + std::to_string(expected) + " in " + std::to_string(dealt_to_) +
               " ranks";
      }
      momentum_[element] = 0.5F * momentum_[element] + sum;
      parameters_[element] -= 0.25F * momentum_[element];
      ++element;
    }
  }
  history_.push_back({epoch.value, dealt_to_, begin, gradients_digest(), digest()});
  return history_.size() < kMostSteps ? "" : "the training is too long for its record";
}

std::uint64_t Training::digest() const {
  return digest_of(std::as_bytes(std::span(momentum_)), digest_of(std::as_bytes(std::span(parameters_))));
}

bool Training::samples_are_whole() const {
  std::uint64_t next = 0;
  return std::ranges::all_of(history_, [&next](const CountedStep& step) {
    const bool follows = step.begin == next && step.ranks > 0;
    next += step.ranks;
    return follows;
  });
}

void Training::save(std::vector<std::byte>& out) const {
  append(out, std::span<const float>(parameters_));
  append(out, std::span<const float>(momentum_));
  const std::uint64_t count = history_.size();
  append(out, std::span(&count, 1));
  std::vector<CountedStep> record = history_;
  record.resize(kMostSteps);
  append(out, std::span<const CountedStep>(record));
}

void Training::load(ConstBytes in, std::size_t& at) {
  take(in, at, std::span(parameters_));
  take(in, at, std::span(momentum_));
  std::uint64_t count = 0;
  take(in, at, std::span(&count, 1));
  std::vector<CountedStep> record(kMostSteps);
  take(in, at, std::span(record));
  SRT_CHECK(count <= kMostSteps);
  record.resize(count);
  history_ = std::move(record);
}

}  // namespace sirtaki::world
