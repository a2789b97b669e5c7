// HostStagedStream: the calls of a stream that has tensors of a GPU, in their order, by way of the host's memory, or of
// none.
//
// A tensor that is ready is fetched first, and what is called after it waits for that, but for the end of the step:
// that comes at once. A result is put back when the program waits for it, alone or with the step. Where the stream
// works on the GPU's memory, which it may do in some steps only, nothing is fetched: calls wait for the GPU alone. Loop
// thread; shared by StreamTable and by what is in flight.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/device_transport.h"

namespace sirtaki::engine {

class HostStagedStream : public std::enable_shared_from_this<HostStagedStream> {
 public:
  // Hands a tensor over. False: the stream takes none now, and does not use the memory.
  using Ready = std::function<bool(const TensorView& tensor)>;
  // Whether tensors that are handed over now are to be on the GPU. Asked by ready(), and again in the turn of its call:
  // what was left there and is not to be any more is fetched then.
  using InPlace = std::function<bool()>;

  using Turn = MoveFunction<void(const Status& given_up)>;

  // Both outlive it. Null `plane`: the stream never works on the GPU's memory; else what the program queues after such
  // a step comes behind the plane's copies.
  HostStagedStream(DeviceStage& stage, DeviceTransport* plane, InPlace in_place)
      : stage_(stage), plane_(plane), in_place_(std::move(in_place)) {}

  struct Source {
    TensorView tensor;       // on the GPU
    device::Stream program;  // the result is for what this is given after the wait
    Result<device::Mark> written = device::Mark();
    bool reads = true;  // else zeros are handed over
  };
  void ready(int index, Source source, Ready hand_over);
  // Any other call of the program's: in its turn with ok, or at once with why the step was given up before that.
  void call(Turn turn);
  // All calls that wait for their turn end now with `cause`. What comes back is for the stream to call when it uses the
  // step's memory no longer; `released` runs then, and when nothing of the step is fetched any more.
  Task give_up(const Status& cause, Task released);

  // What follows is called by tasks in their turn, and wraps what the stream is to call back.
  // The end of the step: results are put back where it ended well.
  Done at_end(Done done);
  // Some of them before.
  Done at_end_of(std::vector<int> tensors, Done done);

 private:
  struct Tensor {
    int index = 0;
    std::byte* target = nullptr;
    device::Stream program;
    device::PinnedBlock memory;
  };
  struct Call {
    Turn turn;
    Task fetch;                  // where the tensor is handed over on the GPU: does so by way of the host instead
    bool due = true;             // nothing of it is fetched
    std::shared_ptr<void> kept;  // what waits for the end of the fetch
  };

  void run();
  void wait_in_place(const std::shared_ptr<Call>& call, int index, Source source, Ready hand_over);
  void fetch(const std::shared_ptr<Call>& call, int index, Source source, Ready hand_over);
  void fetched(const std::shared_ptr<Call>& call, const Status& status);
  void let_pass(const std::vector<device::Stream>& programs);
  Status put_back(const std::function<bool(int)>& wanted);

  DeviceStage& stage_;
  DeviceTransport* const plane_;
  const InPlace in_place_;
  std::deque<std::shared_ptr<Call>> calls_;  // that wait for a fetch
  bool running_ = false;
  std::vector<Tensor> step_;              // what the stream works on
  std::vector<device::Stream> programs_;  // that wrote it, where it works on the GPU's memory
};

}  // namespace sirtaki::engine
