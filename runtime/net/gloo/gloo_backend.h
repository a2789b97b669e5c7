// The backend `gloo`: the collectives of the Gloo library, which block, over a PointToPoint link. Each runs on a lane
// thread. What Gloo has not (reduce-scatter, one rank, nothing to move) goes the direct way.
// Contract and life: as DirectCollectives. No type of Gloo leaves its .cc files.
#pragma once

#include <memory>

#include "runtime/net/collectives/direct.h"

namespace sirtaki::net {

std::unique_ptr<Collectives> make_gloo(PointToPoint& link, const DirectOptions& direct);

}  // namespace sirtaki::net
