// Checks that codecs share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "compression/payload_codec.h"
#include "runtime/base/codec_id.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace sirtaki::compression {

struct ParamRange {
  std::string_view name;
  std::int64_t least;
  std::int64_t most;
};

// What values may travel as, and a factor of momentum.
inline constexpr ParamRange kValueRange{"value (a dtype)", static_cast<int>(DType::kF16),
                                        static_cast<int>(DType::kF32)};
static_assert(static_cast<int>(DType::kBF16) == static_cast<int>(DType::kF16) + 1 &&
              static_cast<int>(DType::kF32) == static_cast<int>(DType::kF16) + 2);
inline constexpr ParamRange kMomentumRange{"momentum", 0, params::kOne - 1};

// Of parameters in which kValue is checked.
inline DType value_dtype(Params values) {
  return static_cast<DType>(values[params::kValue]);
}

// kInvalidArgument unless there is one value for each range, inside it; names codec, parameter, value and range.
Status check_params(std::string_view codec, Params values, std::initializer_list<ParamRange> ranges);

// kCorrupt: a payload holds what its sender cannot have written.
Status impossible_payload(std::string_view what);

}  // namespace sirtaki::compression
