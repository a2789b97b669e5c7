#include "compression/params.h"

#include <algorithm>
#include <cstddef>

namespace sirtaki::compression {

namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000;

}  // namespace

std::int64_t WarmUp::at(std::uint64_t step, std::int64_t wanted) const {
  if (step >= static_cast<std::uint64_t>(steps) || first <= wanted) {
    return wanted;
  }
  std::int64_t stages = 1;
  while (first >> stages > wanted) {
    ++stages;
  }
  const std::int64_t stage = static_cast<std::int64_t>(step) * stages / steps;
  return std::max(first >> stage, wanted);
}

WarmUp warm_up_of(Params values) {
  return values.size() > params::kWarmFirst ? WarmUp{values[params::kWarmSteps], values[params::kWarmFirst]} : WarmUp();
}

std::vector<ParamRange> with_warm_up(Params values, std::vector<ParamRange> ranges, std::int64_t most) {
  if (values.size() > ranges.size()) {
    ranges.push_back({"warm-up", 1, kMostSteps});
    ranges.push_back({"first", 1, most});
  }
  return ranges;
}

Status check_params(std::string_view codec, Params values, const std::vector<ParamRange>& ranges) {
  const std::string who = "codec " + std::string(codec) + ": ";
  if (values.size() != ranges.size()) {
    return invalid_argument(who + std::to_string(values.size()) + " parameters instead of " +
                            std::to_string(ranges.size()));
  }
  std::size_t i = 0;
  for (const ParamRange& range : ranges) {
    const std::int64_t value = values[i++];
    if (value < range.least || value > range.most) {
      return invalid_argument(who + std::string(range.name) + " is " + std::to_string(value) + "; allowed are " +
                              std::to_string(range.least) + " to " + std::to_string(range.most));
    }
  }
  return {};
}

Status impossible_payload(std::string_view what) {
  return corrupt("a compressed payload holds " + std::string(what) + " that no sender writes");
}

}  // namespace sirtaki::compression
