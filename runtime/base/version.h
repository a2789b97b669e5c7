// The version of this build. Ranks of one job must have the same.
#pragma once

#include <string_view>

namespace sirtaki {

std::string_view version();  // "0.1.0"

}  // namespace sirtaki
