// Interface of a fuzz target; fuzz_main.cc runs it over its seeds, mutations of them and random bytes. The same
// functions serve libFuzzer if the compiler has it.
//
// A target reports a broken property by SRT_CHECK; the sanitizers report memory errors. Inputs have at most kMaxInput
// bytes, in memory of exactly their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sirtaki::fuzz {

using Input = std::vector<std::uint8_t>;

inline constexpr std::size_t kMaxInput = 2048;

// Returns valid inputs, from which mutations reach deeper than random bytes do. Defined by each target.
std::vector<Input> seeds();

inline Input input_from(std::string_view text) {
  return {text.begin(), text.end()};
}

inline Input input_from(const std::vector<std::byte>& bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

}  // namespace sirtaki::fuzz
