// HostStagedOps: operations by name in the order in which they were submitted, those on tensors of a GPU by way of the
// host's memory, before an engine that knows this memory alone, or by NCCL.
//
// An allreduce or a broadcast of all ranks that NCCL can do is handed over as it is, when the GPU has come to it; how
// it travels is chosen when all ranks have agreed on it. Results that the runtime allocates are in memory of the host.
// An operation without a name gets its number in the order of submission, so it waits for those before it that are
// still fetched. Loop thread, but for mark(); owned by Session.
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
  // The engine outlives it.
  HostStagedOps(Engine& engine, Rank rank) : engine_(engine), rank_(rank) {}

  // Before the first tensor of a GPU; outlives it.
  void use(DeviceStage& stage, DeviceTransport& plane) {
    stage_ = &stage;
    plane_ = &plane;
  }
  // On any thread, when the program hands the operation over; before submit().
  Result<device::Mark> mark(const OpSpec& spec) const;
  // As Engine's.
  void submit(OpSpec spec, Result<device::Mark> written, OpDone done);
  // Runs `then` when the engine has everything that was submitted before; at once where it has.
  void after_submitted(Task then);

 private:
  struct Op {
    OpSpec spec;        // of the memory that the engine gets
    TensorView target;  // where the program wants the result, on the GPU
    device::Stream program;
    device::PinnedBlock input;
    device::PinnedBlock output;  // where it is no part of `input`
    OpDone done;
    bool direct = false;  // perhaps by NCCL; else it is brought to the host's memory at once
    bool here = false;
    Status fetched;
  };
  using OpPtr = std::shared_ptr<Op>;
  class Way;

  void fetch(const OpPtr& op, Result<device::Mark> written);
  bool may_go_direct(const OpSpec& spec) const;
  // `spec` is `op`'s, wherever it is now.
  void bring(const OpPtr& op, OpSpec& spec, Result<device::Mark> written, Done then);
  Status place(Op& op, OpSpec& spec);
  void on_fetched(const OpPtr& op, const Status& status);
  void hand_over(const OpPtr& op);
  Status put_back(Op& op);

  Engine& engine_;
  const Rank rank_;
  DeviceStage* stage_ = nullptr;
  DeviceTransport* plane_ = nullptr;
  int fetching_ = 0;
  std::deque<OpPtr> unnamed_;  // those that wait for their turn
  std::vector<Task> waiting_;
};

}  // namespace sirtaki::engine
