// PathSelector: selects the path of a stream whose tensors are on a GPU: host memory, NCCL, or compression on the GPU
// with or without NCCL.
//
// All ranks select the same path: the options, the plan and the decision about NCCL are the same on all ranks, and if
// one rank lacks GPU memory, all ranks use host memory. The memory of a path is allocated when the path is selected,
// and never later, as far as the need can be foreseen. Thread: loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

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

// A stream whose path is to be selected.
struct PathQuery {
  StreamId stream;
  std::string name;
  DeviceSupport support;
  const scheduler::Plan& plan;  // the first one
};

struct PathOptions {
  bool compresses = true;         // allows compression on the GPU
  std::int64_t fusion_bytes = 0;  // larger tensors are not packed with others
  std::int64_t credit_bytes = 0;  // bytes on the wire that are in flight at most
};

class PathSelector {
 public:
  // All must outlive the selector and the paths.
  PathSelector(DeviceStage& stage, DeviceTransport& transport, net::Collectives& host, const PathOptions& options)
      : stage_(stage), transport_(transport), host_(host), options_(options) {}

  // Returns true if the path depends on the decision about NCCL. The stream must then block its steps until
  // DeviceTransport::when_decided() has given the answer.
  bool needs_decision(const DeviceSupport& support, const scheduler::Plan& plan) const;
  // Calls `then` exactly once: inline if the path is host memory for all or the device has failed, else later, when the
  // ranks have agreed.
  // `nccl` is null if NCCL is not used or not needed. An error means that the device failed, which the stage has
  // recorded, or that the job is over.
  void select(const PathQuery& query, net::DeviceCollectives* nccl, MoveFunction<void(Result<SelectedPath>)> then);

 private:
  // A reason for which a rank can use host memory only.
  struct Lack {
    enum class Of : std::uint8_t { kKernels, kStream, kBlock };
    Of of = Of::kKernels;
    std::int64_t bytes = 0;  // size of the block of memory that could not be allocated

    // A number for an exchange in which the largest one tells what to report.
    std::int64_t number() const;
    static Lack from(std::int64_t number);
  };
  struct Offer {
    Result<SelectedPath> path;  // kExhausted if this rank lacks something
    std::optional<Lack> lacks = {};
  };

  bool compresses(const DeviceSupport& support) const { return support.compressed && options_.compresses; }
  Offer make_offer(const PathQuery& query, net::DeviceCollectives* nccl);
  Result<SelectedPath> make_path(const PathQuery& query, net::DeviceCollectives* nccl);
  void agree(const PathQuery& query, Offer mine, MoveFunction<void(Result<SelectedPath>)> then);
  void report(const std::string& stream, Rank rank, const Lack& lack);

  DeviceStage& stage_;
  DeviceTransport& transport_;
  net::Collectives& host_;
  const PathOptions options_;
};

}  // namespace sirtaki::engine
