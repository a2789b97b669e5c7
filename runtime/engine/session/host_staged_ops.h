// HostStagedOps: hands operations by name to the engine in the order of submission. The engine knows host memory only,
// so tensors on a GPU are staged through pinned host memory or sent by NCCL.
//
// An operation that NCCL supports is submitted unstaged, once the GPU has completed the work queued before it. Its
// transport is selected when its ranks have agreed on the operation and, for an allgather or alltoall, have
// exchanged the sizes and whether each rank has memory for its result. Results that the runtime allocates are in host
// memory. Unnamed operations get numbers in the order of submission, so each of them waits for earlier unnamed ones
// that are still being fetched. Threads: the loop, except mark(). Owned by Session.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/engine.h"

namespace sirtaki::engine {

class HostStagedOps {
 public:
  // `engine` must outlive this object.
  HostStagedOps(Engine& engine, Rank rank) : engine_(engine), rank_(rank) {}

  // Call this before the first operation on a GPU; both must outlive this object.
  void use(DeviceStage& stage, DeviceTransport& plane) {
    stage_ = &stage;
    plane_ = &plane;
  }
  // Marks the point of the CUDA stream of the program after which the input is complete. Call it when the program
  // submits the operation, before submit(). Threads: any.
  Result<device::Mark> mark(const OpSpec& spec) const;
  // See Engine::submit(). `written` is the mark of the operation.
  void submit(OpSpec spec, Result<device::Mark> written, OpDone done);
  // Runs `then` once the engine has received every operation submitted before; immediately if it has them already.
  void after_submitted(Task then);

 private:
  struct Op {
    OpSpec spec;        // refers to the memory that the engine uses
    TensorView target;  // destination of the result on the GPU
    device::Stream program;
    device::PinnedBlock input;
    device::PinnedBlock output;  // empty if the result overwrites `input`
    OpDone done;
    bool direct = false;  // NCCL is possible; if false, the input is staged at once
    bool here = false;    // the fetch is over
    Status fetched;
  };
  using OpPtr = std::shared_ptr<Op>;
  class Way;

  void fetch(const OpPtr& op, Result<device::Mark> written);
  bool may_go_direct(const OpSpec& spec) const;
  // Stages the input of `op`; `spec` is the specification of `op` at its present place.
  void bring(const OpPtr& op, OpSpec& spec, Result<device::Mark> written, Done then);
  // Points `spec` to pinned memory for the input and output of `op`.
  Status place(Op& op, OpSpec& spec);
  void on_fetched(const OpPtr& op, const Status& status);
  void hand_over(const OpPtr& op);
  Status put_back(Op& op);

  Engine& engine_;
  const Rank rank_;
  DeviceStage* stage_ = nullptr;
  DeviceTransport* plane_ = nullptr;
  int fetching_ = 0;
  std::deque<OpPtr> unnamed_;  // unnamed operations that wait for their turn
  std::vector<Task> waiting_;  // run once fetching_ is 0
};

}  // namespace sirtaki::engine
