#include "runtime/base/config/option_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace sirtaki {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array<Unit, 4> kByteUnits = {{{"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}, {"B", 1}}};
constexpr std::array<Unit, 6> kTimeUnits = {{{"h", 3'600'000'000'000},
                                             {"min", 60'000'000'000},
                                             {"s", 1'000'000'000},
                                             {"ms", 1'000'000},
                                             {"us", 1'000},
                                             {"ns", 1}}};

template <class Int>
std::optional<Int> whole_number(std::string_view text) {
  Int value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    return std::nullopt;
  }
  return value;
}

Status bad(std::string_view text, std::string_view what) {
  return invalid_argument("\"" + std::string(text) + "\" is not " + std::string(what));
}

}  // namespace

Result<std::int64_t> parse_int(std::string_view text) {
  if (const auto value = whole_number<std::int64_t>(text)) {
    return *value;
  }
  return bad(text, "a whole number");
}

Result<bool> parse_bool(std::string_view text) {
  static constexpr std::array<std::string_view, 4> kYes = {"true", "yes", "on", "1"};
  static constexpr std::array<std::string_view, 4> kNo = {"false", "no", "off", "0"};
  if (std::find(kYes.begin(), kYes.end(), text) != kYes.end()) {
    return true;
  }
  if (std::find(kNo.begin(), kNo.end(), text) != kNo.end()) {
    return false;
  }
  return bad(text, "true or false");
}

Result<std::int64_t> parse_bytes(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view unit_name = text.substr(digits);
  const auto value = whole_number<std::int64_t>(text.substr(0, digits));
  const auto unit = std::find_if(kByteUnits.begin(), kByteUnits.end(),
                                 [&](const Unit& u) { return u.name == (unit_name.empty() ? "B" : unit_name); });
  if (!value || unit == kByteUnits.end() || *value > std::numeric_limits<std::int64_t>::max() / unit->factor) {
    return bad(text, "a size");
  }
  return *value * unit->factor;
}

Result<Duration> parse_duration(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits);
  const auto unit =
      std::find_if(kTimeUnits.begin(), kTimeUnits.end(), [&](const Unit& u) { return u.name == text.substr(digits); });
  double value = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.empty() || error != std::errc() || rest != number.data() + number.size() || unit == kTimeUnits.end()) {
    return bad(text, "a duration");
  }
  const double nanoseconds = value * static_cast<double>(unit->factor);
  if (nanoseconds >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
    return bad(text, "a duration");
  }
  // Whole numbers avoid double, which holds 53 bits only.
  if (const auto whole = whole_number<std::int64_t>(number)) {
    return Duration(*whole * unit->factor);
  }
  return Duration(std::llround(nanoseconds));
}

Result<PortRange> parse_port_range(std::string_view text) {
  if (text.empty()) {
    return PortRange{};
  }
  const std::size_t dash = text.find('-');
  const auto first = whole_number<std::uint16_t>(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : whole_number<std::uint16_t>(text.substr(dash + 1));
  if (!first || !last || *first == 0 || *last < *first) {
    return bad(text, "a range of ports");
  }
  return PortRange{*first, *last};
}

std::string format_bytes(std::int64_t bytes) {
  for (const Unit& unit : kByteUnits) {
    if (bytes != 0 && unit.factor != 1 && bytes % unit.factor == 0) {
      return std::to_string(bytes / unit.factor) + std::string(unit.name);
    }
  }
  return std::to_string(bytes);
}

std::string format_duration(Duration duration) {
  if (duration.count() == 0) {
    return "0s";
  }
  const auto unit = std::find_if(kTimeUnits.begin(), kTimeUnits.end(),
                                 [&](const Unit& u) { return duration.count() % u.factor == 0; });
  return std::to_string(duration.count() / unit->factor) + std::string(unit->name);
}

std::string format_port_range(const PortRange& range) {
  if (range == PortRange{}) {
    return "";
  }
  const std::string first = std::to_string(range.first);
  return range.first == range.last ? first : first + "-" + std::to_string(range.last);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

namespace {

// Returns the Levenshtein distance, computed one row at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongestWord = 128;
  if (word.size() > kLongestWord) {
    return {};
  }
  std::string_view best;
  std::size_t best_distance = word.size() / 2 + 1;
  for (const std::string_view candidate : candidates) {
    if (const std::size_t distance = edit_distance(word, candidate); distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace sirtaki
