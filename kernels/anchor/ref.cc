#include "kernels/anchor/anchor.h"
#include "kernels/half/elements.h"

namespace sirtaki::kernels::ref {
namespace {

using Float = Plain<float>;

float at(const std::byte* array, std::size_t i) {
  return Float::load(array + i * sizeof(float));
}

void set(std::byte* array, std::size_t i, float value) {
  Float::store(canonical(value), array + i * sizeof(float));
}

}  // namespace

void subtract(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    set(out, i, at(a, i) - at(b, i));
  }
}

void carry_over(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    set(model, i, at(model, i) - (at(before, i) - at(after, i)));
  }
}

void subtract_scaled(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    set(out, i, at(a, i) - factor * at(b, i));
  }
}

double square_sum(std::int64_t n, const std::byte* a, const std::byte* b) {
  constexpr std::size_t kSums = 16;
  double sums[kSums] = {};
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const double value = canonical(b == nullptr ? at(a, i) : at(a, i) - at(b, i));
    sums[i % kSums] += value * value;
  }
  double sum = 0;
  for (const double part : sums) {
    sum += part;
  }
  return canonical(sum);
}

}  // namespace sirtaki::kernels::ref
