// Keys of named methods: their types and ranges, and a reader for "key=value,key=value".
//
// Used for codecs and policies (compression_methods.h) and for intervals of local updates
// (runtime/local_updates/controller/spec.h). Pure functions; errors give the accepted values and the nearest name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki {

// The form of the text of a key, and the unit of its value.
enum class KeyKind : std::uint8_t {
  kSwitch,       // on, off: 1, 0
  kSize,         // 16KiB: bytes
  kPart,         // 1%, 0.01: 1/65536
  kFactor,       // 2, 0.5, 50%: 1/65536
  kDecimal,      // 0.0175: 1/kDecimalOne
  kCount,        // 512
  kCountOrAuto,  // 512, auto: -1
  kChoice,       // one of several names: its index
};

inline constexpr std::int64_t kDecimalOne = 1'000'000'000'000;

struct KeyInfo {
  std::string_view name;
  KeyKind kind = KeyKind::kCount;
  std::int64_t initial = 0;  // default
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string_view choices = {};  // "a|b|c"
};

// Kinds of optimizers, for keys by which a policy follows the optimizer; the first is SGD.
inline constexpr std::string_view kOptimizerKinds = "sgd|adam|other";

// Returns a key whose value is one of the names in `choices`, by default the first.
KeyInfo choice(std::string_view name, std::string_view choices);

// Returns kInvalidArgument: `text`, then the nearest of `names` to `word`, then `known` with all names.
Status unknown_name(std::string text, std::string_view word, const std::vector<std::string_view>& names,
                    std::string_view known);

// Returns the text without spaces, tabs and line ends at both ends.
std::string_view trimmed(std::string_view text);

// Reads "key=value,key=value" into `values`, by index of the key; other values stay. Returns kInvalidArgument,
// beginning with the name of the owner, for a key that is unknown or given twice, and for a value that is out of range
// or missing.
Status read_keys(std::string_view owner, const std::vector<KeyInfo>& keys, std::string_view text,
                 std::vector<std::int64_t>& values);
// Requires the name of one of the keys.
std::size_t key_index(const std::vector<KeyInfo>& keys, std::string_view name);
// Returns the defaults of the keys.
std::vector<std::int64_t> initial_values(const std::vector<KeyInfo>& keys);

// Returns the accepted values of a key, "a part such as 1% or 0.01, from 0.002% to 100%", and the text of a value.
std::string accepted_values(const KeyInfo& key);
std::string value_text(const KeyInfo& key, std::int64_t value);
// Returns "0.0175" for a value in units of 1/kDecimalOne.
std::string decimal_text(std::int64_t value);
// Returns "1.5%" or "1.5" for a value in units of 1/65536: the shortest text that reads as this value.
std::string part_text(std::int64_t part);
std::string factor_text(std::int64_t factor);

}  // namespace sirtaki
