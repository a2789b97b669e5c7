// Spec: which tensors are compressed, and how, as a text says it; one grammar for all options and rules.
//
//   SPEC   NAME[:key=value[,key=value...]]      a codec or a policy (compression_methods.h), for all tensors
//   RULES  GLOB=>SPEC;GLOB=>SPEC;...            by a tensor's name; the first that matches counts, others stay dense
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
  std::vector<std::int64_t> values;  // by key in info->keys

  bool has(std::string_view key) const;
  // Of a key it has.
  std::int64_t value(std::string_view key) const;
  std::string_view choice(std::string_view key) const;
  void set(std::string_view key, std::int64_t value);
};

struct Rule {
  std::string glob;
  std::string text;  // as it was given, for messages
  Method method;
};

struct Spec {
  std::vector<Rule> rules;
  bool for_all = true;  // given without rules: one that matches everything
};

// kInvalidArgument: names the rule, what is wrong with it, what is allowed, and the nearest name.
Result<Spec> parse_spec(std::string_view text);

// The method at its defaults.
Method method_of(const MethodInfo& info);
// The method with the values of the keys that `other` has too, else at its defaults.
Method method_like(const MethodInfo& info, const Method& other);

// Returns the parameters of a codec that has the keys of its row as parameters: `ef`, then the keys of its own in
// order.
std::vector<std::int64_t> plain_params(const Method& method);

bool glob_matches(std::string_view glob, std::string_view name);

}  // namespace sirtaki
