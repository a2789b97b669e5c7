#include <algorithm>
#include <limits>

#include "kernels/half/elements.h"
#include "kernels/scaled_cast/code.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {

std::size_t scaled_bytes(const ScaledCast& how, std::int64_t n) {
  SRT_CHECK(n >= 0 && how.block >= 1 && how.block <= 65536);
  return scaled_blocks(how, static_cast<std::size_t>(n)) + static_cast<std::size_t>(n);
}

bool scaled_valid(const ScaledCast& how, std::int64_t n, const std::byte* payload) {
  const std::size_t blocks = scaled_bytes(how, n) - static_cast<std::size_t>(n);
  bool valid = true;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto exponent = std::to_integer<std::int8_t>(payload[b]);
    valid &= exponent == kNotFinite || (exponent >= kMinScale && exponent <= 122);
  }
  with_code_type(how.code, [&]<class Code>() {
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      valid &= Code::valid(std::to_integer<std::uint8_t>(payload[blocks + i]));
    }
  });
  return valid;
}

namespace ref {
namespace {

using Float = Plain<float>;

template <class Code>
void encode_block(std::int8_t scale, std::size_t first, std::size_t end, const Feedback& arrays, std::byte* codes) {
  for (std::size_t i = first; i < end; ++i) {
    float a = element(arrays, i);
    codes[i] = std::byte{0};
    if (scale != kNotFinite) {
      const std::uint8_t code = Code::encode(a * power_of_two(-scale));
      codes[i] = static_cast<std::byte>(code);
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
    encode_block<Code>(scale, first, end, arrays, codes);
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
        const auto code = std::to_integer<std::uint8_t>(payload[scaled_blocks(how, count) + i]);
        sum += scale == kNotFinite ? std::numeric_limits<float>::quiet_NaN() : Code::decode(code) * power_of_two(scale);
      }
      Float::store(canonical(sum), out + i * sizeof(float));
    }
  });
}

}  // namespace ref
}  // namespace sirtaki::kernels
