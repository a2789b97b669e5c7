// StreamHandle: the calls of one open stream, for the threads of the program.
//
// A value: copies refer to the same stream. The session that made the handle must outlive its calls. Each call looks
// the stream up, so that a handle of a closed stream returns kInvalidArgument. Checks arguments on the calling thread;
// work on the stream is posted to the loop of the engine.
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/engine/session/stream_table.h"

namespace sirtaki::engine {

class StreamHandle {
 public:
  StreamHandle(StreamTable& table, StreamId id) : table_(&table), id_(id) {}

  // Marks tensor `index` as ready for the current step. `cuda_stream`: see OpSpec; used only for a tensor on a GPU.
  Status ready(int index, TensorView tensor, bool absent, void* cuda_stream = nullptr) const;
  Status finish() const;
  // Waits until the step finished last is over. nullopt: `timeout` has passed and the step goes on.
  std::optional<Status> wait(Duration timeout) const;
  // Calls `done` exactly once when the step finished last is over: on the loop, or from Session::close(). Call wait()
  // then. kInvalidArgument: some caller waits for that step already.
  Status on_done(Task done) const;
  // Waits for tensors of the step finished last and does not open the next step; sleeps only if a result is missing.
  // An error is that of the step: wait() then returns the same. kInvalidArgument: another thread is in this call.
  std::optional<Status> wait_tensors(std::span<const int> tensors, Duration timeout) const;
  // Returns the duration of the last step whose tensors were all reduced, from its first ready() until then.
  Result<Duration> lasted() const;
  // Returns 0, StreamTable::kUsed or StreamTable::kUsedCorrected by tensor (ResultKind).
  Result<std::vector<std::uint8_t>> used() const;
  Status abort(std::string why) const;
  Status close() const;

  // See GradientStream for the next five.
  Status residual(int index, std::span<float> out) const;
  Status set_residual(int index, std::span<const float> in) const;
  Status drain_residuals(std::span<float> out) const;
  Result<std::vector<std::byte>> codec_state(int index) const;
  Status load_codec_state(int index, ConstBytes in) const;
  // Does not wait.
  Status report_loss(double loss) const;
  Result<std::string> tensors_json() const;

 private:
  using Entry = StreamTable::Entry;

  // On the loop: runs `turn` after the calls that the program made on the stream before, in the order of
  // HostStagedStream::call(); immediately if `is_staged`, a property of the entry, is false.
  template <class Turn>
  void in_turn(bool is_staged, Turn turn) const;
  void wait_on_loop(bool is_staged, Done complete) const;
  // Opens entry->waiting. Requires the mutex of the table.
  void begin_wait(const std::shared_ptr<Entry>& entry) const;
  // Ends a wait that the stream has not received.
  void end_wait(Entry& entry, const std::shared_ptr<Slot>& waiting, const Status& cause) const;
  // Calls `ask` on the loop and waits for its answer, which may come later.
  Status on_loop(const std::function<void(GradientStream&, Done)>& ask) const;
  Status check(const Entry& entry, int index, const TensorView& tensor) const;
  std::optional<Status> sleep_until_reduced(std::span<const int> tensors, Duration timeout) const;

  StreamTable* table_;
  StreamId id_;
};

}  // namespace sirtaki::engine
