// The codecs and policies that an option can name, with their keys.
//
// Used to read options (compression_spec.h), by policies (scheduler/policies/) and for help. Tables that never change.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/codec_id.h"
#include "runtime/base/config/spec_keys.h"
#include "runtime/base/status.h"

namespace sirtaki {

// A codec of runtime/base/codecs.inc, or a policy, which chooses codecs.
enum class MethodId : std::uint8_t {
#define SRT_DENSE_CODEC(name, Id, number, help) k##Id,
#define SRT_CODEC(name, Id, number, help, sent, keys) k##Id,
#include "runtime/base/codecs.inc"
#undef SRT_CODEC
#undef SRT_DENSE_CODEC
  kHylo,
  kAlgc,
  kImportance,
  kAuto,
};

struct MethodInfo {
  MethodId id;
  std::string_view name;
  std::string_view help = {};  // one line for a person
  std::vector<KeyInfo> keys = {};
  std::optional<CodecId> codec = {};  // unset for a policy
  std::string_view sent = {};         // words for reasons of decisions; "{key}" stands for the value of that key

  // Returns true for a codec whose payloads are summed by an allreduce.
  bool dense() const { return codec.has_value() && keys.empty(); }
  // Returns the keys that not every compressed method has, in order. Requires such a method.
  std::span<const KeyInfo> own_keys() const;
};

// Returns the reduction of a choice of the key "wire" other than "auto". Requires a valid name.
ReductionKind reduction_named(std::string_view name);
std::string_view reduction_name(ReductionKind reduction);
// Returns the largest number of ranks for which the reduction works.
int reduction_most_ranks(ReductionKind reduction);

// Returns all codecs and policies.
const std::vector<MethodInfo>& methods();
// Returns nullptr for an unknown name.
const MethodInfo* find_method(std::string_view name);

// Returns kInvalidArgument for an unknown name, with the nearest and all known names.
Result<const MethodInfo*> method_named(std::string_view name);

}  // namespace sirtaki
