// One blocking collective of Gloo over a bridge; for gloo_backend.cc only.
#pragma once

#include <memory>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/gloo/gloo_bridge.h"

namespace sirtaki::net {

// Runs on a lane thread. Returns once the collective has ended and its memory is free; throws nothing.
Status call_gloo(const CollectiveArgs& args, Rank rank, int size, const std::shared_ptr<GlooBridge>& bridge);

}  // namespace sirtaki::net
