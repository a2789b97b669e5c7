// Parses TOML text into a flat list of keys and values. The only user of toml++; never throws.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki {

inline constexpr std::size_t kMaxTomlBytes = 256 * 1024;

// Key of an entry that is a [[tensor]] table.
inline constexpr std::string_view kTensorRule = "[[tensor]]";

struct TomlEntry {
  std::string key;    // "net.interface", or kTensorRule with a rule of compression_spec.h as its value
  std::string value;  // the text of a string, integer, float or boolean
  int line = 0;
};

// Returns the entries in the order of their lines. Arrays other than [[tensor]], dates and tables deeper than
// section.key are errors, as is a text over kMaxTomlBytes or a line over 8 KiB. `what` names the text in errors
// ("sirtaki.toml").
Result<std::vector<TomlEntry>> parse_toml(std::string_view text, std::string_view what);

}  // namespace sirtaki
