// Says how ranks disagree: which tensor, which ranks, both values, likely cause. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/control/messages.h"

namespace sirtaki::control {

// ok when all metas are compatible and allowed together. One entry a rank, all set.
Status describe_mismatch(const std::string& name, const std::vector<std::optional<OpMeta>>& metas);
Status describe_mismatch(const std::string& name, const std::vector<std::optional<StreamOpen>>& specs);

}  // namespace sirtaki::control
