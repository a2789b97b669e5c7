#include <algorithm>
#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/low_rank/low_rank.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_rank/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_RVV || (HWY_TARGET & (HWY_SVE | HWY_SVE2))

// Targets with one lane use the reference; so do those with vectors of unknown length, which cannot be elements of
// arrays.
void project_target(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p) {
  ref::low_rank_project(shape, arrays, q, p);
}
void project_back_target(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q) {
  ref::low_rank_project_back(shape, arrays, p, q);
}
void rebuild_target(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                    std::byte* out) {
  ref::low_rank_rebuild(shape, arrays, p, q, out);
}

#else

using Lane = PlainLane<float>;
using Float = ref::Plain<float>;
constexpr std::size_t kLanes = hn::MaxLanes(F32Tag());
constexpr std::size_t kSums = 16;
constexpr std::size_t kSumVectors = kSums / kLanes;
// Vectors of a factor that are processed together: as many as have their sums in registers.
constexpr std::size_t kGroup = 4;
// Rows that are processed together, each a memory stream of its own: a vector of a factor is loaded once for all of
// them.
constexpr std::size_t kRows = 4;
// The same for loops that keep sums of every row in registers.
constexpr std::size_t kSumRows = std::max<std::size_t>(1, kRows / kSumVectors);

struct Matrix {
  const Feedback& arrays;
  std::size_t rows;
  std::size_t cols;
  std::size_t rank;

  // Loads up to a vector of a row of a, `count` elements at most; the other lanes are zero.
  template <bool kFeedback>
  F32Vec load(std::size_t row, std::size_t col, std::size_t count) const {
    const std::size_t at = (row * cols + col) * sizeof(float);
    auto a = load_up_to<Lane>(arrays.gradient + at, count);
    if constexpr (kFeedback) {
      a = hn::Add(a, load_up_to<Lane>(arrays.residual + at, count));
    }
    return a;
  }
};

std::size_t vector_at(std::size_t n, std::size_t k, std::size_t i) {
  return (k * n + i) * sizeof(float);
}

// Calls body.template operator()<kMany>(k) for vectors [k, k + kMany) of all.
template <class Body>
void for_each_group(std::size_t rank, Body body) {
  for (std::size_t k = 0; k < rank; k += kGroup) {
    switch (rank - k) {
      case 1:
        body.template operator()<1>(k);
        break;
      case 2:
        body.template operator()<2>(k);
        break;
      case 3:
        body.template operator()<3>(k);
        break;
      default:
        body.template operator()<kGroup>(k);
    }
  }
}

// Sums of kRow rows with kMany vectors.
template <std::size_t kRow, std::size_t kMany>
struct RowSums {
  F32Vec sums[kRow][kMany][kSumVectors];

  RowSums() {
    for (auto& row : sums) {
      for (auto& vectors : row) {
        std::fill(vectors, vectors + kSumVectors, hn::Zero(F32Tag()));
      }
    }
  }
  // v: index of the vector among the 16 columns.
  template <bool kFeedback>
  void add(const Matrix& a, std::size_t row, std::size_t col, std::size_t v, const std::byte* q, std::size_t count) {
    F32Vec values[kRow];
    for (std::size_t r = 0; r < kRow; ++r) {
      values[r] = a.load<kFeedback>(row + r, col, count);
    }
    for (std::size_t m = 0; m < kMany; ++m) {
      const auto factor = load_up_to<Lane>(q + vector_at(a.cols, m, col), count);
      for (std::size_t r = 0; r < kRow; ++r) {
        sums[r][m][v] = hn::Add(sums[r][m][v], hn::Mul(values[r], factor));
      }
    }
  }
  float total(std::size_t r, std::size_t m) const {
    HWY_ALIGN float lanes[kSums];
    for (std::size_t v = 0; v < kSumVectors; ++v) {
      hn::Store(sums[r][m][v], F32Tag(), lanes + v * kLanes);
    }
    for (std::size_t half = kSums / 2; half > 0; half /= 2) {
      for (std::size_t s = 0; s < half; ++s) {
        lanes[s] += lanes[s + half];
      }
    }
    return ref::canonical(lanes[0]);
  }
};

// Computes vectors [k, k + kMany) of kRow rows of P.
template <bool kFeedback, std::size_t kRow, std::size_t kMany>
void project_rows(const Matrix& a, std::size_t row, std::size_t k, const std::byte* q, std::byte* p) {
  const std::byte* const group = q + vector_at(a.cols, k, 0);
  RowSums<kRow, kMany> sums;
  std::size_t j = 0;
  for (; j + kSums <= a.cols; j += kSums) {
    for (std::size_t v = 0; v < kSumVectors; ++v) {
      sums.template add<kFeedback>(a, row, j + v * kLanes, v, group, kLanes);
    }
  }
  for (std::size_t v = 0; j < a.cols; j += kLanes, ++v) {
    sums.template add<kFeedback>(a, row, j, v, group, a.cols - j);
  }
  for (std::size_t r = 0; r < kRow; ++r) {
    for (std::size_t m = 0; m < kMany; ++m) {
      Float::store(sums.total(r, m), p + vector_at(a.rows, k + m, row + r));
    }
  }
}

template <bool kFeedback>
void project(const Matrix& a, const std::byte* q, std::byte* p) {
  std::size_t row = 0;
  for (; row + kSumRows <= a.rows; row += kSumRows) {
    for_each_group(
        a.rank, [&]<std::size_t kMany>(std::size_t k) { project_rows<kFeedback, kSumRows, kMany>(a, row, k, q, p); });
  }
  for (; row < a.rows; ++row) {
    for_each_group(a.rank,
                   [&]<std::size_t kMany>(std::size_t k) { project_rows<kFeedback, 1, kMany>(a, row, k, q, p); });
  }
}

// Adds kRow rows to vectors [k, k + kMany) of Q.
template <bool kFeedback, std::size_t kRow, std::size_t kMany>
void add_rows(const Matrix& a, std::size_t row, std::size_t k, const std::byte* p, std::byte* q) {
  const F32Tag d;
  F32Vec factors[kRow][kMany];
  for (std::size_t r = 0; r < kRow; ++r) {
    for (std::size_t m = 0; m < kMany; ++m) {
      factors[r][m] = hn::Set(d, Float::load(p + vector_at(a.rows, k + m, row + r)));
    }
  }
  std::byte* const group = q + vector_at(a.cols, k, 0);
  const auto add = [&](std::size_t j, std::size_t here) {
    F32Vec sums[kMany];
    for (std::size_t m = 0; m < kMany; ++m) {
      sums[m] = load_up_to<Lane>(group + vector_at(a.cols, m, j), here);
    }
    for (std::size_t r = 0; r < kRow; ++r) {
      const auto value = a.load<kFeedback>(row + r, j, here);
      for (std::size_t m = 0; m < kMany; ++m) {
        sums[m] = hn::Add(sums[m], hn::Mul(value, factors[r][m]));
      }
    }
    for (std::size_t m = 0; m < kMany; ++m) {
      store_up_to<Lane>(canonical(d, sums[m]), group + vector_at(a.cols, m, j), here);
    }
  };
  std::size_t j = 0;
  for (; j + kLanes <= a.cols; j += kLanes) {
    add(j, kLanes);
  }
  if (j < a.cols) {
    add(j, a.cols - j);
  }
}

template <bool kFeedback>
void project_back(const Matrix& a, const std::byte* p, std::byte* q) {
  std::memset(q, 0, a.rank * a.cols * sizeof(float));
  std::size_t row = 0;
  for (; row + kRows <= a.rows; row += kRows) {
    for_each_group(a.rank,
                   [&]<std::size_t kMany>(std::size_t k) { add_rows<kFeedback, kRows, kMany>(a, row, k, p, q); });
  }
  for (; row < a.rows; ++row) {
    for_each_group(a.rank, [&]<std::size_t kMany>(std::size_t k) { add_rows<kFeedback, 1, kMany>(a, row, k, p, q); });
  }
}

// Computes kRow rows of P Q'. kRank 0 stands for any a.rank.
template <bool kFeedback, std::size_t kRank, std::size_t kRow>
void rebuild_rows(const Matrix& a, std::size_t row, const std::byte* p, const std::byte* q, std::byte* out) {
  const F32Tag d;
  const std::size_t rank = kRank == 0 ? a.rank : kRank;
  F32Vec factors[kRow][kRank == 0 ? kMostRank : kRank];
  for (std::size_t r = 0; r < kRow; ++r) {
    for (std::size_t k = 0; k < rank; ++k) {
      factors[r][k] = hn::Set(d, Float::load(p + vector_at(a.rows, k, row + r)));
    }
  }
  const auto columns = [&](std::size_t j, std::size_t here) {
    F32Vec sums[kRow];
    std::fill(sums, sums + kRow, hn::Zero(d));
    for (std::size_t k = 0; k < rank; ++k) {
      const auto other = load_up_to<Lane>(q + vector_at(a.cols, k, j), here);
      for (std::size_t r = 0; r < kRow; ++r) {
        sums[r] = hn::Add(sums[r], hn::Mul(factors[r][k], other));
      }
    }
    for (std::size_t r = 0; r < kRow; ++r) {
      const auto sum = canonical(d, sums[r]);
      const std::size_t at = vector_at(a.cols, row + r, j);
      if constexpr (kFeedback) {
        const auto left = hn::Sub(a.load<kFeedback>(row + r, j, here), sum);
        store_up_to<Lane>(canonical(d, left), a.arrays.left + at, here);
      }
      if (out != nullptr) {
        store_up_to<Lane>(sum, out + at, here);
      }
    }
  };
  std::size_t j = 0;
  for (; j + kLanes <= a.cols; j += kLanes) {
    columns(j, kLanes);
  }
  if (j < a.cols) {
    columns(j, a.cols - j);
  }
}

template <bool kFeedback, std::size_t kRank>
void rebuild_as(const Matrix& a, const std::byte* p, const std::byte* q, std::byte* out) {
  std::size_t row = 0;
  for (; row + 2 <= a.rows; row += 2) {
    rebuild_rows<kFeedback, kRank, 2>(a, row, p, q, out);
  }
  if (row < a.rows) {
    rebuild_rows<kFeedback, kRank, 1>(a, row, p, q, out);
  }
}

template <bool kFeedback>
void rebuild(const Matrix& a, const std::byte* p, const std::byte* q, std::byte* out) {
  switch (a.rank) {
    case 1:
      return rebuild_as<kFeedback, 1>(a, p, q, out);
    case 2:
      return rebuild_as<kFeedback, 2>(a, p, q, out);
    case 3:
      return rebuild_as<kFeedback, 3>(a, p, q, out);
    case 4:
      return rebuild_as<kFeedback, 4>(a, p, q, out);
    default:
      return rebuild_as<kFeedback, 0>(a, p, q, out);
  }
}

Matrix matrix_of(const LowRank& shape, const Feedback& arrays) {
  return {arrays, static_cast<std::size_t>(shape.rows), static_cast<std::size_t>(shape.cols),
          static_cast<std::size_t>(shape.rank)};
}

void project_target(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p) {
  const Matrix a = matrix_of(shape, arrays);
  arrays.residual == nullptr ? project<false>(a, q, p) : project<true>(a, q, p);
}
void project_back_target(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q) {
  const Matrix a = matrix_of(shape, arrays);
  arrays.residual == nullptr ? project_back<false>(a, p, q) : project_back<true>(a, p, q);
}
void rebuild_target(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                    std::byte* out) {
  const Matrix a = matrix_of(shape, arrays);
  arrays.residual == nullptr ? rebuild<false>(a, p, q, out) : rebuild<true>(a, p, q, out);
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(project_target);
HWY_EXPORT(project_back_target);
HWY_EXPORT(rebuild_target);

namespace {

void check(const LowRank& shape, const Feedback& arrays) {
  SRT_CHECK(shape.rows >= 0 && shape.cols >= 0 && shape.rank >= 1 && shape.rank <= kMostRank);
  SRT_CHECK(arrays.valid());
}

}  // namespace

void low_rank_project(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p) {
  check(shape, arrays);
  HWY_DYNAMIC_DISPATCH(project_target)(shape, arrays, q, p);
}

void low_rank_project_back(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q) {
  check(shape, arrays);
  HWY_DYNAMIC_DISPATCH(project_back_target)(shape, arrays, p, q);
}

void low_rank_rebuild(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                      std::byte* out) {
  check(shape, arrays);
  HWY_DYNAMIC_DISPATCH(rebuild_target)(shape, arrays, p, q, out);
}

}  // namespace sirtaki::kernels
#endif
