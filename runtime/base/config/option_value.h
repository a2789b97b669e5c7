// Texts of option values and their typed forms: sizes, durations, port ranges, switches, choices.
//
// Pure functions. Errors give the accepted form; the caller adds the origin of the value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

// Ports from first to last; any free port if both are 0.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
  bool operator==(const PortRange&) const = default;
};

// Reads "-3" or "42", without spaces or a plus sign.
Result<std::int64_t> parse_int(std::string_view text);
// Reads true, yes, on or 1, and false, no, off or 0.
Result<bool> parse_bool(std::string_view text);
// Reads "65536", "64KiB", "4MiB" or "1GiB" as bytes.
Result<std::int64_t> parse_bytes(std::string_view text);
// Reads "5s", "250ms", "1.5s", "30min" or "2h"; requires a unit (ns, us, ms, s, min, h).
Result<Duration> parse_duration(std::string_view text);
// Reads "41000-41100", "41000" (one port) or "" (any).
Result<PortRange> parse_port_range(std::string_view text);

// These return the shortest text that parses to the same value.
std::string format_bytes(std::int64_t bytes);
std::string format_duration(Duration duration);
std::string format_port_range(const PortRange& range);

// Splits "a|b|c".
std::vector<std::string_view> split(std::string_view text, char separator);

// Returns the candidate with the smallest edit distance to `word`; empty if none is near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace sirtaki
