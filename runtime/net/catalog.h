// Catalog of collectives backends, one row each. The values of the option that chooses a backend, their help texts and
// the conformance tests follow from the rows.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/collectives/direct.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

struct BackendSetup {
  PointToPoint* link = nullptr;          // outlives the backend
  std::shared_ptr<SharedMemory> shared;  // memory of all ranks of this host, or null on all of them
  DirectOptions direct;                  // with the hosts of all ranks where an allreduce may go host by host
};

struct Backend {
  std::string_view name;
  std::string_view help;
  // Runs on the loop of the link.
  std::unique_ptr<Collectives> (*make)(const BackendSetup& setup);
};

// The first row is the default.
std::span<const Backend> backends();

// Returns kInvalidArgument with the names of all backends if there is no row of that name.
Result<std::unique_ptr<Collectives>> make_collectives(std::string_view name, const BackendSetup& setup);

}  // namespace sirtaki::net
