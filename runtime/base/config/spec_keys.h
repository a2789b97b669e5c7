// Keys of what a text can name: their types and ranges, and reading them from "key=value,key=value".
//
// For: tables of names that take keys: codecs and policies (compression_methods.h), intervals of local updates
// (runtime/local_updates/controller/spec.h). Pure functions; errors say what is accepted, and the nearest name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki {

// How a key's text is read, and what its value counts.
enum class KeyKind : std::uint8_t {
  kSwitch,       // on, off: 1, 0
  kSize,         // 16KiB: bytes
  kPart,         // 1%, 0.01: 1/65536
  kFactor,       // 2, 0.5, 50%: 1/65536
  kDecimal,      // 0.0175: 1/kDecimalOne
  kCount,        // 512
  kCountOrAuto,  // 512, auto: -1
  kChoice,       // one of some names: its place among them
};

inline constexpr std::int64_t kDecimalOne = 1'000'000'000'000;

struct KeyInfo {
  std::string_view name;
  KeyKind kind = KeyKind::kCount;
  std::int64_t initial = 0;  // without the key
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string_view choices = {};  // "a|b|c"
};

// kInvalidArgument: `text`, then the nearest of `names` to `word`, then `known` with all of them.
Status unknown_name(std::string text, std::string_view word, const std::vector<std::string_view>& names,
                    std::string_view known);

// Without spaces, tabs and line ends on both sides.
std::string_view trimmed(std::string_view text);

// "key=value,key=value" into `values`, by place; those that are not named stay. kInvalidArgument: one is unknown, out
// of range, given twice, or no pair; says what is accepted, and begins with the owner's name.
Status read_keys(std::string_view owner, const std::vector<KeyInfo>& keys, std::string_view text,
                 std::vector<std::int64_t>& values);
// Of a key that is there.
std::size_t key_index(const std::vector<KeyInfo>& keys, std::string_view name);
// What the keys have when none is given.
std::vector<std::int64_t> initial_values(const std::vector<KeyInfo>& keys);

// What a key takes: "a part such as 1% or 0.01, from 0.002% to 100%"; and how a value of it is written.
std::string accepted_values(const KeyInfo& key);
std::string value_text(const KeyInfo& key, std::int64_t value);
// "0.0175", of a value in 1/kDecimalOne.
std::string decimal_text(std::int64_t value);
// "1.5%", "1.5", of a value in 1/65536: the shortest text that is read as this value.
std::string part_text(std::int64_t part);
std::string factor_text(std::int64_t factor);

}  // namespace sirtaki
