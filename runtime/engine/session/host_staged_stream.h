// HostStagedStream: runs the calls of a stream with tensors on a GPU in their order, and stages the tensors through
// pinned host memory where necessary.
//
// A ready tensor is fetched first, and later calls wait for the fetch; only give_up() overtakes them. A result is
// copied back as soon as it is in host memory. When the program waits for the result, alone or with its step, work that
// it queues later is ordered after the copies. In a step in which the stream uses GPU memory directly, no tensor is
// fetched: calls wait until the GPU has written the tensors. Threads: the loop. Shared by StreamTable and the calls in
// flight.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/device_transport.h"

namespace sirtaki::engine {

class HostStagedStream : public std::enable_shared_from_this<HostStagedStream> {
 public:
  // Hands a tensor to the stream. Returns false if the stream accepts none now; the memory is not used then.
  using Ready = std::function<bool(const TensorView& tensor)>;
  // Returns whether the current step uses GPU memory directly. ready() asks first; the turn of its call asks again, and
  // fetches the tensor if the answer has become false.
  using InPlace = std::function<bool()>;

  // A call of the program. `given_up` is the reason if the step was given up before the turn of the call, else ok.
  using Turn = MoveFunction<void(const Status& given_up)>;

  // Both must outlive this object. A null `plane` means that the stream never uses GPU memory directly. Otherwise, work
  // that the program queues after such a step is ordered behind the copies of the transport, too.
  HostStagedStream(DeviceStage& stage, DeviceTransport* plane, InPlace in_place)
      : stage_(stage), plane_(plane), in_place_(std::move(in_place)) {}

  struct Source {
    TensorView tensor;       // on the GPU
    device::Stream program;  // work queued here after the wait sees the result
    Result<device::Mark> written = device::Mark();
    bool reads = true;  // false: the tensor is replaced by zeros
  };
  // Fetches tensor `index` if the step needs it in host memory, and calls `hand_over` in its turn.
  void ready(int index, Source source, Ready hand_over);
  // Runs `turn` exactly once: after the calls made before, or immediately with the cause when the step is given up.
  void call(Turn turn);
  // Ends all calls that wait for their turn with `cause`. Returns a function that the stream must call once it no
  // longer uses the memory of the step. `released` runs after that call and after the last fetch of the step has ended.
  Task give_up(const Status& cause, Task released);

  // Copies the result of tensor `index` back, if it was fetched and its result has not been copied yet.
  void result(int index);
  // Wraps the completion of a step: orders the program behind the results, then calls `done`. Call this and
  // at_end_of_tensors() in a turn.
  Done at_end(Done done);
  // Wraps the completion of some tensors before the end of their step.
  Done at_end_of_tensors(Done done);

 private:
  struct Tensor {
    std::byte* target = nullptr;
    device::PinnedBlock memory;
  };
  struct Call {
    Turn turn;
    Task fetch;                  // stages a tensor that was left on the GPU
    bool due = true;             // no fetch of it is in flight
    std::shared_ptr<void> kept;  // released at the end of the fetch
  };

  void run();
  void wait_in_place(const std::shared_ptr<Call>& call, int index, Source source, Ready hand_over);
  void fetch(const std::shared_ptr<Call>& call, int index, Source source, Ready hand_over);
  void fetched(const std::shared_ptr<Call>& call, const Status& status);
  void handed_over(device::Stream program);
  // Orders work that `programs` queue from now on behind the results that the device has or is given.
  Status let_pass(const std::vector<device::Stream>& programs);

  DeviceStage& stage_;
  DeviceTransport* const plane_;
  const InPlace in_place_;
  std::deque<std::shared_ptr<Call>> calls_;  // calls that wait for a fetch
  bool running_ = false;
  // The current step:
  std::unordered_map<int, Tensor> fetched_;  // tensors whose result has not been copied back
  std::vector<device::Stream> programs_;     // CUDA streams that wrote tensors
  Status returned_;                          // first error of a copy back
};

}  // namespace sirtaki::engine
