#include "runtime/control/scope.h"

#include <charconv>
#include <limits>
#include <optional>

namespace sirtaki::control {
namespace {

constexpr std::string_view kOf = " of rank";
constexpr std::string_view kComma = ", ";

bool take(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) {
    return false;
  }
  text.remove_prefix(start.size());
  return true;
}

std::optional<Rank> take_rank(std::string_view& text, int size) {
  Rank rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || rank < 0 || rank >= size) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return rank;
}

std::optional<RankSet> parse(std::string_view name, int size) {
  const std::size_t at = name.rfind(kOf);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view text = name.substr(at + kOf.size());
  take(text, "s");
  if (!take(text, " ")) {
    return std::nullopt;
  }
  RankSet ranks;
  do {
    const auto first = take_rank(text, size);
    const auto last = first && take(text, "-") ? take_rank(text, size) : first;
    if (!first || !last || *last < *first) {
      return std::nullopt;
    }
    ranks.add(RankSet::range(*first, *last + 1));
  } while (take(text, kComma));
  // A set has one spelling, so that an operation has one name.
  return scoped_name(name.substr(0, at), ranks) == name ? std::optional(std::move(ranks)) : std::nullopt;
}

}  // namespace

std::string scoped_name(std::string_view name, const RankSet& ranks) {
  return std::string(name) + " of " + ranks.to_string();
}

RankSet scope_of(std::string_view name, int size) {
  return parse(name, size).value_or(RankSet::range(0, size));
}

bool has_scope(std::string_view name) {
  return parse(name, std::numeric_limits<int>::max()).has_value();
}

}  // namespace sirtaki::control
