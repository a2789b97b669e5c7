#include "compression/params.h"

#include <cstddef>

namespace sirtaki::compression {

Status check_params(std::string_view codec, Params values, std::initializer_list<ParamRange> ranges) {
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
