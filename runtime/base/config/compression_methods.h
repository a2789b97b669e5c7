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
#include "runtime/base/config/spec_keys.h"
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

struct MethodInfo {
  MethodId id;
  std::string_view name;
  std::string_view help;  // one line for a person
  std::vector<KeyInfo> keys;
};

// Choices of the key "wire": the first is "auto", the others are reductions.
ReductionKind reduction_named(std::string_view name);
std::string_view reduction_name(ReductionKind reduction);

const std::vector<MethodInfo>& methods();
// nullptr: there is none.
const MethodInfo* find_method(std::string_view name);

// kInvalidArgument: unknown, with the nearest and all known names.
Result<const MethodInfo*> method_named(std::string_view name);

}  // namespace sirtaki
