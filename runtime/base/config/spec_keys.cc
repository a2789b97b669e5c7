#include "runtime/base/config/spec_keys.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/codec_id.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki {
namespace {

__extension__ using Wide = __int128;

using params::kOne;

constexpr std::string_view kAuto = "auto";

// Returns the number in units of 1/one, divided by `divisor`. Reads decimal digits without sign and exponent, in
// integers, so that all ranks get the same value.
Result<std::int64_t> read_decimal(std::string_view text, std::int64_t one, std::int64_t divisor = 1) {
  Wide digits = 0;
  Wide scale = divisor;
  bool point = false;
  std::size_t count = 0;
  for (const char c : text) {
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9' || ++count > 18) {
      return invalid_argument("not a number");
    }
    digits = digits * 10 + (c - '0');
    scale *= point ? 10 : 1;
  }
  if (count == 0) {
    return invalid_argument("not a number");
  }
  const Wide value = (digits * one + scale / 2) / scale;
  return static_cast<std::int64_t>(std::min<Wide>(value, std::numeric_limits<std::int64_t>::max()));
}

// Returns value / one, where `one` is a power of ten, without trailing zeros.
std::string with_places(std::int64_t value, std::int64_t one) {
  std::string text = std::to_string(value / one);
  if (std::string rest = std::to_string(one + value % one).substr(1); value % one != 0) {
    rest.erase(rest.find_last_not_of('0') + 1);
    text += "." + rest;
  }
  return text;
}

// Returns value * unit / kOne with the fewest places that distinguish it from its neighbours.
std::string shortest(std::int64_t value, std::int64_t unit) {
  std::string text;
  for (std::int64_t one = 1; one <= 1'000'000; one *= 10) {
    text = with_places(static_cast<std::int64_t>((Wide{value} * unit * one + kOne / 2) / kOne), one);
    const auto again = read_decimal(text, kOne, unit);
    if (again && *again == value) {
      break;
    }
  }
  return text;
}

Result<std::int64_t> read_part(std::string_view text) {
  return text.ends_with('%') ? read_decimal(text.substr(0, text.size() - 1), kOne, 100) : read_decimal(text, kOne);
}

Result<std::int64_t> read_unchecked(const KeyInfo& key, std::string_view text) {
  switch (key.kind) {
    case KeyKind::kSwitch: {
      SRT_ASSIGN(const bool on, parse_bool(text));
      return on ? 1 : 0;
    }
    case KeyKind::kSize:
      return parse_bytes(text);
    case KeyKind::kPart:
    case KeyKind::kFactor:
      return read_part(text);
    case KeyKind::kDecimal:
      return read_decimal(text, kDecimalOne);
    case KeyKind::kCountOrAuto: {
      if (text == kAuto) {
        return -1;
      }
      // -1 stands for auto, so a user may not write it.
      SRT_ASSIGN(const std::int64_t count, parse_int(text));
      return count < 0 ? Result<std::int64_t>(invalid_argument("below 0")) : count;
    }
    case KeyKind::kCount:
      return parse_int(text);
    case KeyKind::kChoice:
      break;
  }
  const std::vector<std::string_view> names = split(key.choices, '|');
  const auto found = std::ranges::find(names, text);
  return found == names.end() ? Result<std::int64_t>(invalid_argument("no such name"))
                              : Result<std::int64_t>(static_cast<std::int64_t>(found - names.begin()));
}

Result<std::size_t> key_named(std::string_view owner, const std::vector<KeyInfo>& keys, std::string_view name) {
  const auto found = std::ranges::find(keys, name, &KeyInfo::name);
  if (found != keys.end()) {
    return static_cast<std::size_t>(found - keys.begin());
  }
  const std::string text = std::string(owner) + " has no key '" + std::string(name) + "'";
  if (keys.empty()) {
    return invalid_argument(text + "; it has none");
  }
  std::vector<std::string_view> names;
  for (const KeyInfo& key : keys) {
    names.push_back(key.name);
  }
  return unknown_name(text, name, names, "its keys are");
}

Result<std::int64_t> read_value(const KeyInfo& key, std::string_view text) {
  Result<std::int64_t> value = read_unchecked(key, text);
  if (!value || *value < key.least || *value > key.most) {
    return invalid_argument(std::string(key.name) + " is '" + std::string(text) + "'; it must be " +
                            accepted_values(key));
  }
  return value;
}

Status read_pairs(std::string_view owner, const std::vector<KeyInfo>& keys, std::string_view text,
                  std::vector<std::int64_t>& values) {
  std::vector<bool> given(keys.size(), false);
  for (const std::string_view item : split(text, ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return invalid_argument("'" + std::string(trimmed(item)) + "' is not key=value");
    }
    SRT_ASSIGN(const std::size_t key, key_named(owner, keys, trimmed(item.substr(0, equals))));
    if (given[key]) {
      return invalid_argument("key '" + std::string(keys[key].name) + "' is given twice");
    }
    given[key] = true;
    SRT_ASSIGN(values[key], read_value(keys[key], trimmed(item.substr(equals + 1))));
  }
  return {};
}

}  // namespace

Status unknown_name(std::string text, std::string_view word, const std::vector<std::string_view>& names,
                    std::string_view known) {
  if (const std::string_view near = nearest(word, names); !near.empty()) {
    text += " (did you mean " + std::string(near) + "?)";
  }
  text += std::string("; ") + std::string(known);
  for (std::size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? " " : ", ").append(names[i]);
  }
  return invalid_argument(std::move(text));
}

KeyInfo choice(std::string_view name, std::string_view choices) {
  return {name, KeyKind::kChoice, 0, 0, static_cast<std::int64_t>(split(choices, '|').size()) - 1, choices};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Status read_keys(std::string_view owner, const std::vector<KeyInfo>& keys, std::string_view text,
                 std::vector<std::int64_t>& values) {
  return read_pairs(owner, keys, text, values).with_context(owner);
}

std::size_t key_index(const std::vector<KeyInfo>& keys, std::string_view name) {
  const auto found = std::ranges::find(keys, name, &KeyInfo::name);
  SRT_CHECK(found != keys.end());
  return static_cast<std::size_t>(found - keys.begin());
}

std::vector<std::int64_t> initial_values(const std::vector<KeyInfo>& keys) {
  std::vector<std::int64_t> values;
  for (const KeyInfo& key : keys) {
    values.push_back(key.initial);
  }
  return values;
}

std::string accepted_values(const KeyInfo& key) {
  switch (key.kind) {
    case KeyKind::kSwitch:
      return "on or off";
    case KeyKind::kSize:
      return "a size such as 16KiB, from " + format_bytes(key.least) + " to " + format_bytes(key.most);
    case KeyKind::kPart:
      return "a part such as 1% or 0.01, from " + part_text(key.least) + " to " + part_text(key.most);
    case KeyKind::kFactor:
      return "a factor such as 2 or 0.5, from " + factor_text(key.least) + " to " + factor_text(key.most);
    case KeyKind::kDecimal:
      return "a number such as 0.0175, from " + decimal_text(key.least) + " to " + decimal_text(key.most);
    case KeyKind::kCountOrAuto:
      return "auto or a whole number from 0 to " + std::to_string(key.most);
    case KeyKind::kCount:
      return "a whole number from " + std::to_string(key.least) + " to " + std::to_string(key.most);
    case KeyKind::kChoice:
      break;
  }
  std::string names(key.choices);
  for (std::size_t at = names.find('|'); at != std::string::npos; at = names.find('|', at)) {
    names.replace(at, 1, ", ");
  }
  return "one of " + names;
}

std::string value_text(const KeyInfo& key, std::int64_t value) {
  switch (key.kind) {
    case KeyKind::kSwitch:
      return value != 0 ? "on" : "off";
    case KeyKind::kSize:
      return format_bytes(value);
    case KeyKind::kPart:
      return part_text(value);
    case KeyKind::kFactor:
      return factor_text(value);
    case KeyKind::kDecimal:
      return decimal_text(value);
    case KeyKind::kCountOrAuto:
      return value < 0 ? std::string(kAuto) : std::to_string(value);
    case KeyKind::kCount:
      return std::to_string(value);
    case KeyKind::kChoice:
      break;
  }
  return std::string(split(key.choices, '|')[static_cast<std::size_t>(value)]);
}

std::string decimal_text(std::int64_t value) {
  return with_places(value, kDecimalOne);
}

std::string part_text(std::int64_t part) {
  return shortest(part, 100) + "%";
}

std::string factor_text(std::int64_t factor) {
  return shortest(factor, 1);
}

}  // namespace sirtaki
