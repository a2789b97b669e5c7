// NcclIds: broadcasts the ids of communicators of NCCL over collectives of the host.
//
// The ranks of the collectives must ask in one order, which numbers the tags. Owners: DeviceTransport, DeviceSets.
// Thread: loop.
#pragma once

#include <string>

#include "runtime/base/task.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::engine {

class NcclIds final : public net::nccl::IdExchange {
 public:
  // `net` must outlive this. The first broadcast has the tag `first`, the next one the tag behind it, and so on.
  NcclIds(net::Collectives& net, OpTag first) : net_(net), next_(first) {}

  void exchange(const std::string& key, const net::nccl::UniqueId* own,
                MoveFunction<void(Result<net::nccl::UniqueId>)> done) override;

 private:
  net::Collectives& net_;
  OpTag next_;
};

}  // namespace sirtaki::engine
