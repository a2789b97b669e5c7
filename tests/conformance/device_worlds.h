// Worlds of collectives of device memory on a fake device: "nccl", over a fake NCCL, "ordered", the same in an order
// that the ranks agree on, and "loopback". One manual loop for all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {

std::vector<std::string> device_worlds();
std::unique_ptr<World> make_device_world(const std::string& name, int size);

}  // namespace sirtaki::net::testing
