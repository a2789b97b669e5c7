#include <algorithm>
#include <limits>

#include "kernels/half/elements.h"
#include "kernels/scaled_cast/code.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

// Returns true if the 4 bits after the last code of every block of an odd size are zero.
bool has_zero_padding(std::size_t block, std::size_t n, const std::byte* codes) {
  bool zero = true;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t size = std::min(block, n - first);
    codes += code_bytes<Int4>(size);
    zero &= size % 2 == 0 || (codes[-1] >> 4) == std::byte{0};
  }
  return zero;
}

}  // namespace

std::size_t scaled_bytes(const ScaledCast& how, std::int64_t n) {
  SRT_CHECK(n >= 0 && how.block >= 1 && how.block <= 65536);
  const auto count = static_cast<std::size_t>(n);
  const auto block = static_cast<std::size_t>(how.block);
  std::size_t codes = 0;
  with_code_type(how.code, [&]<class Code>() {
    codes = count / block * code_bytes<Code>(block) + code_bytes<Code>(count % block);
  });
  return scaled_blocks(how, count) + codes;
}

bool scaled_valid(const ScaledCast& how, std::int64_t n, const std::byte* payload) {
  const std::size_t bytes = scaled_bytes(how, n);
  const auto count = static_cast<std::size_t>(n);
  const std::size_t blocks = scaled_blocks(how, count);
  bool valid = true;
  with_code_type(how.code, [&]<class Code>() {
    // The scale of the largest float32.
    constexpr int kMaxScale = 128 - Code::kLargestExponent;
    for (std::size_t b = 0; b < blocks; ++b) {
      const auto exponent = std::to_integer<std::int8_t>(payload[b]);
      valid &= exponent == kNotFinite || (exponent >= kMinScale && exponent <= kMaxScale);
    }
    for (std::size_t i = blocks; i < bytes; ++i) {
      valid &= Code::valid(std::to_integer<std::uint8_t>(payload[i]));
    }
    if constexpr (Code::kBits == 4) {
      valid &= has_zero_padding(static_cast<std::size_t>(how.block), count, payload + blocks);
    }
  });
  return valid;
}

namespace ref {
namespace {

using Float = Plain<float>;

// Stores the code of element i of a block, whose codes before i are stored.
template <class Code>
void store_code(std::uint8_t code, std::size_t i, std::byte* codes) {
  if (Code::kBits == 4 && i % 2 != 0) {
    codes[i / 2] |= static_cast<std::byte>(code << 4);
  } else {
    codes[i * Code::kBits / 8] = static_cast<std::byte>(code);
  }
}

template <class Code>
std::uint8_t load_code(std::size_t i, const std::byte* codes) {
  const auto byte = std::to_integer<std::uint8_t>(codes[i * Code::kBits / 8]);
  return Code::kBits == 4 && i % 2 != 0 ? byte >> 4 : byte;
}

// Encodes elements `first` to `end`; `codes`: of this block.
template <class Code>
void encode_block(std::int8_t scale, std::size_t first, std::size_t end, const Feedback& arrays, std::byte* codes) {
  for (std::size_t i = first; i < end; ++i) {
    float a = element(arrays, i);
    store_code<Code>(0, i - first, codes);
    if (scale != kNotFinite) {
      const std::uint8_t code = Code::encode(a * power_of_two(-scale));
      store_code<Code>(code, i - first, codes);
      a -= Code::decode(code) * power_of_two(scale);
    }
    if (arrays.left != nullptr) {
      Float::store(a, arrays.left + i * sizeof(float));
    }
  }
}

template <class Code>
bool encode_all(const ScaledCast& how, std::size_t n, const Feedback& arrays, std::byte* payload) {
  const auto block = static_cast<std::size_t>(how.block);
  std::byte* const codes = payload + scaled_blocks(how, n);
  bool finite = true;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t end = std::min(first + block, n);
    std::uint32_t largest = 0;
    for (std::size_t i = first; i < end; ++i) {
      largest = std::max(largest, magnitude_bits(element(arrays, i)));
    }
    const std::int8_t scale = scale_of<Code>(largest);
    payload[first / block] = static_cast<std::byte>(scale);
    encode_block<Code>(scale, first, end, arrays, codes + first / block * code_bytes<Code>(block));
    finite = finite && scale != kNotFinite;
  }
  return finite;
}

}  // namespace

bool scaled_encode(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  bool finite = true;
  with_code_type(how.code,
                 [&]<class Code>() { finite = encode_all<Code>(how, static_cast<std::size_t>(n), arrays, payload); });
  return finite;
}

void scaled_sum(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  const auto count = static_cast<std::size_t>(n);
  const auto block = static_cast<std::size_t>(how.block);
  with_code_type(how.code, [&]<class Code>() {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const std::byte* payload : payloads) {
        const auto scale = std::to_integer<std::int8_t>(payload[i / block]);
        const std::byte* const codes = payload + scaled_blocks(how, count) + i / block * code_bytes<Code>(block);
        const std::uint8_t code = load_code<Code>(i % block, codes);
        sum += scale == kNotFinite ? std::numeric_limits<float>::quiet_NaN() : Code::decode(code) * power_of_two(scale);
      }
      Float::store(canonical(sum), out + i * sizeof(float));
    }
  });
}

}  // namespace ref
}  // namespace sirtaki::kernels
