// Spec: the choice of a codec or policy for each tensor, read from a text with one grammar for all options and rules.
//
//   SPEC   NAME[:key=value[,key=value...]]      a codec or a policy (compression_methods.h), for all tensors
//   RULES  GLOB=>SPEC;GLOB=>SPEC;...            by name of the tensor; the first match counts, other tensors stay dense
// In a GLOB * stands for any text and ? for one character. Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config/compression_methods.h"
#include "runtime/base/status.h"

namespace sirtaki {

struct Method {
  const MethodInfo* info = nullptr;
  std::vector<std::int64_t> values;  // index: key in info->keys

  bool has(std::string_view key) const;
  // Returns the value of a key. This function, choice() and set() require a key of this method.
  std::int64_t value(std::string_view key) const;
  std::string_view choice(std::string_view key) const;
  void set(std::string_view key, std::int64_t value);
};

struct Rule {
  std::string glob;
  std::string text;  // the original text, for messages
  Method method;
};

struct Spec {
  std::vector<Rule> rules;
  bool for_all = true;  // a single method without rules, for every tensor
};

// Returns kInvalidArgument with the rule, its fault, the accepted values and the nearest name.
Result<Spec> parse_spec(std::string_view text);

// Returns the method with all keys at their defaults.
Method method_of(const MethodInfo& info);
// Returns the method with the values of the keys that it shares with `other`, and defaults for the rest.
Method method_like(const MethodInfo& info, const Method& other);

// Returns the parameters of a codec that has the keys of its row as parameters: `ef`, then the keys of its own in
// order.
std::vector<std::int64_t> plain_params(const Method& method);

// Returns true if the whole name matches the glob.
bool glob_matches(std::string_view glob, std::string_view name);

}  // namespace sirtaki
