#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/onebit/onebit.h"
#include "kernels/onebit/scale.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {

std::size_t onebit_bytes(std::int64_t block, std::int64_t n) {
  SRT_CHECK(n >= 0 && block >= kOnebitChunk && block <= kOnebitLargestBlock && block % kOnebitChunk == 0);
  return onebit_blocks(block, n) + (static_cast<std::size_t>(n) + 7) / 8;
}

bool onebit_valid(std::int64_t block, std::int64_t n, const std::byte* payload) {
  const auto last = static_cast<unsigned>(n % 8);
  return last == 0 || (payload[onebit_bytes(block, n) - 1] >> last) == std::byte{0};
}

namespace ref {
namespace {

using Float = Plain<float>;

bool is_negative(const std::byte* signs, std::size_t i) {
  return (signs[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
}

void encode_block(std::int8_t exponent, std::size_t first, std::size_t end, const Feedback& arrays, std::byte* signs) {
  const bool travels = exponent != kOnebitNothing && exponent != kOnebitNotFinite;
  const float scale = travels ? onebit_scale(exponent) : 0.0F;
  for (std::size_t i = first; i < end; ++i) {
    float a = element(arrays, i);
    if (travels && a < 0) {
      signs[i / 8] |= std::byte{1} << (i % 8);
    }
    if (travels) {
      a = a < 0 ? a + scale : a - scale;
    }
    if (arrays.left != nullptr) {
      Float::store(a, arrays.left + i * sizeof(float));
    }
  }
}

}  // namespace

bool onebit_encode(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  const std::size_t blocks = onebit_blocks(block, n);
  std::memset(payload, 0, onebit_bytes(block, n));
  bool finite = true;
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t first = b * static_cast<std::size_t>(block);
    const std::size_t end = std::min(first + static_cast<std::size_t>(block), static_cast<std::size_t>(n));
    const auto elements = static_cast<std::int64_t>(end - first);
    const Magnitude size = ref::magnitude(elements, arrays.from(static_cast<std::int64_t>(first)));
    const std::int8_t exponent = onebit_exponent(size, end - first);
    payload[b] = static_cast<std::byte>(exponent);
    encode_block(exponent, first, end, arrays, payload + blocks);
    finite = finite && exponent != kOnebitNotFinite;
  }
  return finite;
}

void onebit_sum(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  const std::size_t blocks = onebit_blocks(block, n);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    float sum = 0;
    for (const std::byte* payload : payloads) {
      const auto exponent = std::to_integer<std::int8_t>(payload[i / static_cast<std::size_t>(block)]);
      const float scale = onebit_scale(exponent);
      sum += is_negative(payload + blocks, i) ? -scale : scale;
    }
    Float::store(canonical(sum), out + i * sizeof(float));
  }
}

}  // namespace ref
}  // namespace sirtaki::kernels
