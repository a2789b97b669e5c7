// The codecs and policies that a text can name, with their keys.
//
// For: reading such texts (compression_spec.h), deciding by them (scheduler/policies/), and help. Pure: tables that
// never change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/codec_id.h"
#include "runtime/base/status.h"

namespace sirtaki {

enum class MethodId : std::uint8_t {
  kNone,
  kFp16,
  kBf16,
  kInt8,
  kFp8E4M3,
  kFp8E5M2,
  kTwobit,
  kOnebit,
  kGroupTopk,
  kThresholdSparse,
  kKernelSparse,
  kBlockTopk,
  kPowerSgd,
  kHylo,
  kAlgc,
  kImportance,
  kAuto,
};

// How a key's text is read, and what its value counts.
enum class KeyKind : std::uint8_t {
  kSwitch,  // on, off: 1, 0
  kSize,    // 16KiB: bytes
  kPart,    // 1%, 0.01: 1/65536
  kCount,   // 512
  kChoice,  // one of some names: its place among them
};

struct KeyInfo {
  std::string_view name;
  KeyKind kind = KeyKind::kCount;
  std::int64_t initial = 0;  // without the key
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string_view choices = {};  // "a|b|c"
};

struct MethodInfo {
  MethodId id;
  std::string_view name;
  std::string_view help;  // one line for a person
  std::vector<KeyInfo> keys;
};

// Choices of the key "wire": the first is "auto", the others are recipes.
Recipe recipe_named(std::string_view name);
std::string_view recipe_name(Recipe recipe);

const std::vector<MethodInfo>& methods();
// nullptr: there is none.
const MethodInfo* find_method(std::string_view name);

// kInvalidArgument: unknown, with the nearest and all known names.
Result<const MethodInfo*> method_named(std::string_view name);
// The place of a key in info.keys; kInvalidArgument as above.
Result<std::size_t> key_named(const MethodInfo& info, std::string_view name);
// kInvalidArgument says what is accepted.
Result<std::int64_t> read_value(const KeyInfo& key, std::string_view text);

// What a key takes: "a part such as 1% or 0.01, from 0.002% to 100%"; and how a value of it is written.
std::string accepted_values(const KeyInfo& key);
std::string value_text(const KeyInfo& key, std::int64_t value);
// "1.5%", of a value in 1/65536, to three places.
std::string part_text(std::int64_t part);

}  // namespace sirtaki
