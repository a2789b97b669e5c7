#include "runtime/base/config/compression_spec.h"

#include <algorithm>
#include <utility>

#include "runtime/base/config/option_value.h"

namespace sirtaki {
namespace {

constexpr std::string_view kArrow = "=>";

Result<Method> read_method(std::string_view text) {
  text = trimmed(text);
  const std::size_t colon = std::min(text.find(':'), text.size());
  SRT_ASSIGN(const MethodInfo* info, method_named(trimmed(text.substr(0, colon))));
  Method method = method_of(*info);
  if (colon < text.size()) {
    SRT_TRY(read_keys(info->name, info->keys, text.substr(colon + 1), method.values));
  }
  return method;
}

Result<Rule> read_rule(std::string_view text) {
  const std::size_t arrow = text.find(kArrow);
  if (arrow == std::string_view::npos) {
    return invalid_argument("it is not GLOB=>CODEC");
  }
  const std::string_view glob = trimmed(text.substr(0, arrow));
  if (glob.empty()) {
    return invalid_argument("it names no tensors; write *=>CODEC for all");
  }
  SRT_ASSIGN(Method method, read_method(text.substr(arrow + kArrow.size())));
  return Rule{std::string(glob), std::string(text), std::move(method)};
}

}  // namespace

bool Method::has(std::string_view key) const {
  return std::ranges::find(info->keys, key, &KeyInfo::name) != info->keys.end();
}

std::int64_t Method::value(std::string_view key) const {
  return values[key_index(info->keys, key)];
}

std::string_view Method::choice(std::string_view key) const {
  const std::size_t index = key_index(info->keys, key);
  return split(info->keys[index].choices, '|')[static_cast<std::size_t>(values[index])];
}

void Method::set(std::string_view key, std::int64_t value) {
  values[key_index(info->keys, key)] = value;
}

Method method_of(const MethodInfo& info) {
  return {&info, initial_values(info.keys)};
}

Method method_like(const MethodInfo& info, const Method& other) {
  Method method = method_of(info);
  for (const KeyInfo& key : info.keys) {
    if (other.has(key.name)) {
      method.set(key.name, other.value(key.name));
    }
  }
  return method;
}

std::vector<std::int64_t> plain_params(const Method& method) {
  std::vector<std::int64_t> values = {method.value("ef")};
  for (const KeyInfo& key : method.info->own_keys()) {
    values.push_back(method.value(key.name));
  }
  return values;
}

Result<Spec> parse_spec(std::string_view text) {
  const std::string quoted = "compression '" + std::string(trimmed(text)) + "'";
  Spec spec;
  if (text.find(kArrow) == std::string_view::npos) {
    auto method = read_method(text);
    if (!method) {
      return method.status().with_context(quoted);
    }
    spec.rules.push_back({"*", std::string(trimmed(text)), std::move(*method)});
    return spec;
  }
  spec.for_all = false;
  for (const std::string_view part : split(text, ';')) {
    const std::string_view one = trimmed(part);
    if (one.empty()) {
      continue;
    }
    auto rule = read_rule(one);
    if (!rule) {
      return rule.status().with_context("compression rule " + std::to_string(spec.rules.size() + 1) + " '" +
                                        std::string(one) + "'");
    }
    spec.rules.push_back(std::move(*rule));
  }
  return spec;
}

// Backtracks to the last * only, since every earlier * has matched the shortest possible text.
bool glob_matches(std::string_view glob, std::string_view name) {
  std::size_t g = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t matched = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      matched = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g;
      ++n;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      n = ++matched;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

}  // namespace sirtaki
