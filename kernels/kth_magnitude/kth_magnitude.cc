#include "kernels/kth_magnitude/kth_magnitude.h"

#include <cstring>

#include "kernels/half/elements.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

std::uint32_t key(const std::byte* data, std::size_t i) {
  const std::uint32_t bits = ref::Plain<std::uint32_t>::load(data + i * sizeof(float)) & 0x7FFFFFFFU;
  return bits > 0x7F800000U ? 0x7FC00000U : bits;
}

// Counts 31-bit keys by some of their bits. Neighbours often fall into one bin; two tables let an increment start
// before the previous one has finished.
template <int kBits>
class Histogram {
 public:
  void add(std::size_t i, std::uint32_t bin) { ++counts_[i % 2][bin]; }

  // Returns the bin of the k-th largest key; k becomes its position inside the bin.
  std::uint32_t find(std::int64_t& k) const {
    std::uint32_t bin = (1U << kBits) - 1;
    for (; size(bin) < k; --bin) {
      k -= size(bin);
    }
    return bin;
  }

 private:
  std::int64_t size(std::uint32_t bin) const { return std::int64_t{counts_[0][bin]} + counts_[1][bin]; }

  std::uint32_t counts_[2][1U << kBits] = {};
};

// Finds the bin by the kBits bits from kShift on, among keys whose bits above kShift + kBits are `prefix`.
template <int kBits, int kShift>
std::uint32_t refine(std::size_t n, const std::byte* data, std::uint32_t prefix, std::int64_t& k) {
  Histogram<kBits> histogram;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = key(data, i) >> kShift;
    if (bits >> kBits == prefix) {
      histogram.add(i, bits & ((1U << kBits) - 1));
    }
  }
  return prefix << kBits | histogram.find(k);
}

}  // namespace

// Radix selection: by 11 bits, then by 10 and 10 more among the keys of the same bin.
KthMagnitude kth_magnitude(std::int64_t n, std::int64_t k, const std::byte* data) {
  SRT_CHECK(k >= 1 && k <= n && n <= UINT32_MAX);
  const auto count = static_cast<std::size_t>(n);
  std::int64_t place = k;
  std::uint32_t prefix = refine<11, 20>(count, data, 0, place);
  prefix = refine<10, 10>(count, data, prefix, place);
  prefix = refine<10, 0>(count, data, prefix, place);
  return {prefix, k - place};
}

}  // namespace sirtaki::kernels
