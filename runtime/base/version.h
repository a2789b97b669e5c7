// The version of this build, which must be equal on all ranks of a job.
#pragma once

#include <string_view>

namespace sirtaki {

std::string_view version();  // for example "0.1.0"

}  // namespace sirtaki
