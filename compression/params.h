// Checks that codecs share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "compression/payload_codec.h"
#include "runtime/base/status.h"

namespace sirtaki::compression {

struct ParamRange {
  std::string_view name;
  std::int64_t least;
  std::int64_t most;
};

// kInvalidArgument unless there is one value for each range, inside it; names codec, parameter, value and range.
Status check_params(std::string_view codec, Params values, std::initializer_list<ParamRange> ranges);

// kCorrupt: a payload holds what its sender cannot have written.
Status impossible_payload(std::string_view what);

}  // namespace sirtaki::compression
