// StagedStream: the calls of a stream that has tensors of a GPU, in their order, by way of the host's memory.
//
// A tensor that is ready is fetched first, and what is called after it waits for that. A result is put back when the
// program waits for it, alone or with the step.
// Loop thread; shared by StreamTable and by what is in flight.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/engine/device_stage.h"

namespace sirtaki::engine {

class StagedStream : public std::enable_shared_from_this<StagedStream> {
 public:
  // Hands a tensor over, in the host's memory. False: the stream takes none now, and does not use the memory.
  using Ready = std::function<bool(const TensorView& tensor)>;

  explicit StagedStream(DeviceStage& stage) : stage_(stage) {}  // which outlives it

  // On the GPU, written by what `program` has been given; the result is for what that is given after the wait. Without
  // `reads` zeros are handed over.
  void ready(int index, const TensorView& tensor, device::Stream program, bool reads, Ready hand_over);
  // Any other call of the program's, in its turn.
  void call(Task task);

  // What follows is called by tasks in their turn, and wraps what the stream is to call back.
  // The end of the step: results are put back where it ended well.
  Done at_end(Done done);
  // Some of them before.
  Done at_end_of(std::vector<int> tensors, Done done);
  // The end of a step that is given up while the program goes on with the next.
  Task at_release(Task released);

 private:
  struct Tensor {
    int index = 0;
    std::byte* target = nullptr;
    device::Stream program;
    device::PinnedBlock memory;
  };
  struct Call {
    Task task;
    bool due = true;
  };

  void run();
  Status put_back(const std::function<bool(int)>& wanted);

  DeviceStage& stage_;
  std::deque<std::shared_ptr<Call>> calls_;  // that wait for a fetch
  bool running_ = false;
  std::vector<Tensor> step_;  // what the stream works on
};

}  // namespace sirtaki::engine
