// Checks of parameters that codecs share.
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

// Ranges of the dtype of sent values, and of a momentum factor.
inline constexpr ParamRange kValueRange{"value (a dtype)", static_cast<int>(DType::kF16),
                                        static_cast<int>(DType::kF32)};
static_assert(static_cast<int>(DType::kBF16) == static_cast<int>(DType::kF16) + 1 &&
              static_cast<int>(DType::kF32) == static_cast<int>(DType::kF16) + 2);
inline constexpr ParamRange kMomentumRange{"momentum", 0, params::kOne - 1};

// Requires parameters whose kValue is checked.
inline DType value_dtype(Params values) {
  return static_cast<DType>(values[params::kValue]);
}

// Density warm-up: more elements are sent in the first steps of a training: `first` in the first stage, half of it in
// the next, and so on down to the wanted number, with equally long stages. A function of integers, so all ranks send
// equally many.
// Source: warm-up training, in which sparsity rises exponentially (Lin et al., Deep Gradient Compression, 2018; there
// by quarters, one epoch each).
struct WarmUp {
  std::int64_t steps = 0;  // 0: no warm-up
  std::int64_t first = 0;

  // Returns the number of elements to send in step `step`, counted from 0.
  std::int64_t at(std::uint64_t step, std::int64_t wanted) const;
};

// Returns the warm-up of parameters kWarmSteps and kWarmFirst, if they are given.
WarmUp warm_up_of(Params values);
// Appends the ranges of these for check_params(), if they are given.
std::vector<ParamRange> with_warm_up(Params values, std::vector<ParamRange> ranges, std::int64_t most);

// Returns kInvalidArgument unless there is one value for each range, inside it; names codec, parameter, value and
// range.
Status check_params(std::string_view codec, Params values, const std::vector<ParamRange>& ranges);

// Returns kCorrupt for a payload that no sender can have written.
Status impossible_payload(std::string_view what);

}  // namespace sirtaki::compression
