// Checks that codecs share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// More travels in the first steps of a training: `first` in the first one, then half of it, and so on down to what is
// wanted, each for as many steps. A function of integers, so all ranks send as much.
// Source: warm-up training, in which sparsity rises exponentially (Lin et al., Deep Gradient Compression, 2018; there
// by quarters, an epoch each).
struct WarmUp {
  std::int64_t steps = 0;  // 0: none
  std::int64_t first = 0;

  // What travels in step `step`, counted from 0.
  std::int64_t at(std::uint64_t step, std::int64_t wanted) const;
};

// Of parameters kWarmSteps and kWarmFirst, where they are given.
WarmUp warm_up_of(Params values);
// The ranges of these, for check_params(); none where they are not given.
std::vector<ParamRange> with_warm_up(Params values, std::vector<ParamRange> ranges, std::int64_t most);

// kInvalidArgument unless there is one value for each range, inside it; names codec, parameter, value and range.
Status check_params(std::string_view codec, Params values, const std::vector<ParamRange>& ranges);

// kCorrupt: a payload holds what its sender cannot have written.
Status impossible_payload(std::string_view what);

}  // namespace sirtaki::compression
