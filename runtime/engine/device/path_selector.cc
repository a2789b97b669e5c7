#include "runtime/engine/device/path_selector.h"

#include <algorithm>
#include <utility>

#include "runtime/engine/device/device_path.h"
#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/host_staged_path.h"

namespace sirtaki::engine {

bool PathSelector::needs_decision(const DeviceSupport& support, const scheduler::Plan& plan) const {
  if (!compresses(support)) {
    return support.dense && !transport_.host_only();
  }
  if (support.by_host) {
    return !transport_.host_only();
  }
  // A fully compressed plan sends nothing over NCCL, so the ranks need not connect it.
  return std::ranges::any_of(plan.partitions(),
                             [](const scheduler::Partition& part) { return !part.format.compressed(); });
}

Result<SelectedPath> PathSelector::select(const DeviceSupport& support, const scheduler::Plan& plan,
                                          net::DeviceCollectives* nccl) {
  SelectedPath path;
  if (nccl == nullptr && (!compresses(support) || support.by_host)) {
    return path;
  }
  if (const Status open = transport_.open_copies(); !open.ok()) {
    return stage_.fail(open);
  }
  if (compresses(support)) {
    auto compressor = DeviceCompressor::create(transport_, nccl, plan.tensors());
    if (!compressor) {
      return stage_.fail(compressor.status());
    }
    path.compressor = std::move(*compressor);
  }
  if (nccl != nullptr) {
    path.dense = std::make_unique<DevicePath>(transport_, *nccl);
  } else {
    path.dense = std::make_unique<HostStagedPath>(transport_, host_);
  }
  return path;
}

}  // namespace sirtaki::engine
