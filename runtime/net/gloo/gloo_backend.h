// GlooCollectives: the backend `gloo`, blocking collectives of the Gloo library over a PointToPoint link, each on a
// lane thread. Operations that Gloo lacks (reduce-scatter, one rank, no data) use DirectCollectives. Contract and
// lifetime are those of DirectCollectives. Types of Gloo stay in .cc files.
#pragma once

#include <memory>

#include "runtime/net/collectives/direct.h"

namespace sirtaki::net {

// Returns null in a build without Gloo.
std::unique_ptr<Collectives> make_gloo(PointToPoint& link, const DirectOptions& direct);

}  // namespace sirtaki::net
