#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/low_rank/low_rank.h"

namespace sirtaki::kernels::ref {
namespace {

using Float = Plain<float>;

// Returns element i of vector k; vectors have n elements.
float load(const std::byte* vectors, std::size_t n, std::size_t k, std::size_t i) {
  return Float::load(vectors + (k * n + i) * sizeof(float));
}
void store(float value, std::byte* vectors, std::size_t n, std::size_t k, std::size_t i) {
  Float::store(canonical(value), vectors + (k * n + i) * sizeof(float));
}

struct Sizes {
  explicit Sizes(const LowRank& shape)
      : rows(static_cast<std::size_t>(shape.rows)),
        cols(static_cast<std::size_t>(shape.cols)),
        rank(static_cast<std::size_t>(shape.rank)) {}
  std::size_t rows;
  std::size_t cols;
  std::size_t rank;
};

}  // namespace

void low_rank_project(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p) {
  const Sizes size(shape);
  for (std::size_t i = 0; i < size.rows; ++i) {
    for (std::size_t k = 0; k < size.rank; ++k) {
      float sums[16] = {};
      for (std::size_t j = 0; j < size.cols; ++j) {
        sums[j % 16] += element(arrays, i * size.cols + j) * load(q, size.cols, k, j);
      }
      for (std::size_t half = 8; half > 0; half /= 2) {
        for (std::size_t s = 0; s < half; ++s) {
          sums[s] += sums[s + half];
        }
      }
      store(sums[0], p, size.rows, k, i);
    }
  }
}

void low_rank_project_back(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q) {
  const Sizes size(shape);
  for (std::size_t k = 0; k < size.rank; ++k) {
    for (std::size_t j = 0; j < size.cols; ++j) {
      float sum = 0;
      for (std::size_t i = 0; i < size.rows; ++i) {
        sum += element(arrays, i * size.cols + j) * load(p, size.rows, k, i);
      }
      store(sum, q, size.cols, k, j);
    }
  }
}

void low_rank_rebuild(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                      std::byte* out) {
  const Sizes size(shape);
  for (std::size_t i = 0; i < size.rows; ++i) {
    for (std::size_t j = 0; j < size.cols; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < size.rank; ++k) {
        sum += load(p, size.rows, k, i) * load(q, size.cols, k, j);
      }
      sum = canonical(sum);
      const std::size_t at = i * size.cols + j;
      const float left = canonical(element(arrays, at) - sum);
      if (out != nullptr) {
        Float::store(sum, out + at * sizeof(float));
      }
      if (arrays.left != nullptr) {
        Float::store(left, arrays.left + at * sizeof(float));
      }
    }
  }
}

}  // namespace sirtaki::kernels::ref
