// PathSelector: selects the path of a stream whose tensors are on a GPU: host memory, NCCL, or compression on the GPU
// with or without NCCL.
//
// All ranks select the same path, since the options, the plan and the decision about NCCL are the same on all of them.
// Thread: loop.
#pragma once

#include <memory>

#include "runtime/engine/device/device_compressor.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/dense_path.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

// The parts of a reduction that a stream can leave on the GPU.
struct DeviceSupport {
  bool dense = false;       // all gradients are reduced uncompressed
  bool compressed = false;  // some gradients are encoded on the GPU
  bool by_host = false;     // the same, and the GPUs of a host sum over NCCL first
};

struct SelectedPath {
  std::unique_ptr<DensePath> dense;              // null: host memory
  std::unique_ptr<DeviceCompressor> compressor;  // null: no gradient is encoded on the GPU
};

class PathSelector {
 public:
  // All must outlive the selector and the paths. `compresses`: the options allow compression on the GPU.
  PathSelector(DeviceStage& stage, DeviceTransport& transport, net::Collectives& host, bool compresses)
      : stage_(stage), transport_(transport), host_(host), compresses_(compresses) {}

  // Returns true if the path depends on the decision about NCCL. The stream must then block its steps until
  // DeviceTransport::when_decided() has given the answer.
  bool needs_decision(const DeviceSupport& support, const scheduler::Plan& plan) const;
  // `nccl` is null if NCCL is not used or not needed. An error means that the device failed; the stage has recorded it.
  Result<SelectedPath> select(const DeviceSupport& support, const scheduler::Plan& plan, net::DeviceCollectives* nccl);

 private:
  bool compresses(const DeviceSupport& support) const { return support.compressed && compresses_; }

  DeviceStage& stage_;
  DeviceTransport& transport_;
  net::Collectives& host_;
  const bool compresses_;
};

}  // namespace sirtaki::engine
