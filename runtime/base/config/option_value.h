// Texts of option values and their typed forms: sizes, durations, port ranges, switches, choices.
//
// Pure functions. Errors say what is accepted; who gave the value is added by the caller.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

// Both 0: any free port.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
  bool operator==(const PortRange&) const = default;
};

// "-3", "42". No sign '+', no space.
Result<std::int64_t> parse_int(std::string_view text);
// true, yes, on, 1 and false, no, off, 0.
Result<bool> parse_bool(std::string_view text);
// "65536", "64KiB", "4MiB", "1GiB". Bytes.
Result<std::int64_t> parse_bytes(std::string_view text);
// "5s", "250ms", "1.5s", "30min", "2h"; a unit is needed (ns, us, ms, s, min, h).
Result<Duration> parse_duration(std::string_view text);
// "41000-41100", "41000" (one port) or "" (any).
Result<PortRange> parse_port_range(std::string_view text);

// The shortest text that parses to the same value.
std::string format_bytes(std::int64_t bytes);
std::string format_duration(Duration duration);
std::string format_port_range(const PortRange& range);

// Splits "a|b|c".
std::vector<std::string_view> split(std::string_view text, char separator);

// The candidate with the smallest edit distance to `word`; empty when none is near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace sirtaki
