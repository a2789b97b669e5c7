// StreamTable: streams as the program's threads see them: checks that need no other rank, and waiting.
//
// Threads: any. Work on a stream is posted to the engine's loop. Owned by Session.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/host_staged_stream.h"
#include "runtime/engine/session/request_table.h"

namespace sirtaki::engine {

class StreamTable {
 public:
  static constexpr std::uint8_t kUsed = 1;
  static constexpr std::uint8_t kUsedCorrected = 2;

  // All outlive the table. `engine` is used on the loop only.
  StreamTable(Loop& loop, Engine& engine, Waiter& waiter, Rank rank, int size)
      : loop_(loop), engine_(engine), waiter_(waiter), rank_(rank), size_(size) {}

  // On the loop, before the first stream with tensors of a GPU; outlive the table. `encodes`: gradients are encoded
  // there where they can be; the same on all ranks.
  void use(DeviceStage& stage, DeviceTransport& plane, net::Collectives& host, bool encodes) {
    stage_ = &stage;
    plane_ = &plane;
    host_ = &host;
    encodes_ = encodes;
  }

  // After kTimeout, and kAborted of an interrupted wait, the opening goes on: another call with the same name and
  // tensors waits for it.
  Result<StreamId> open(StreamSpec spec, Duration timeout);
  // `cuda_stream`: as OpSpec's, of a tensor on a GPU.
  Status ready(StreamId stream, int index, TensorView tensor, bool absent, void* cuda_stream);
  Status finish(StreamId stream);
  std::optional<Status> wait(StreamId stream, Duration timeout);
  // Runs `done` once: on the loop when the step finished last is over, or from end(). wait() is to be called then.
  // kInvalidArgument when somebody waits for that step already.
  Status on_done(StreamId stream, Task done);
  // On the loop: runs `then` when no call that came before waits for a GPU any more; at once where none does.
  void after_calls(Task then) const;
  // The loop has stopped: nothing completes any more.
  void end();
  // Sleeps only for tensors whose result is not there yet. kInvalidArgument when another thread is in this call.
  std::optional<Status> wait_tensors(StreamId stream, std::span<const int> tensors, Duration timeout);
  // Of the last step whose tensors were all reduced: from its first ready() to then.
  Result<Duration> lasted(StreamId stream) const;
  // By tensor: 0, kUsed or kUsedCorrected (ResultKind).
  Result<std::vector<std::uint8_t>> used(StreamId stream) const;
  Status abort(StreamId stream, std::string why);
  Status close(StreamId stream);
  Status residual(StreamId stream, int index, std::span<float> out) const;
  Status set_residual(StreamId stream, int index, std::span<const float> in);
  Status take_residuals(StreamId stream, std::span<float> out);
  Result<std::vector<std::byte>> remembered(StreamId stream, int index) const;
  Status recall(StreamId stream, int index, ConstBytes in);
  // Does not wait. kInvalidArgument: no such stream.
  Status report_loss(StreamId stream, double loss) const;
  Result<std::string> tensors_json(StreamId stream) const;

 private:
  struct Entry {
    std::string name;
    std::vector<std::string> tensors;  // names; constant
    std::vector<TensorView> views;     // what they are, without memory; constant
    bool staged = false;               // some are on a GPU; constant
    std::shared_ptr<StreamBoard> board;
    std::shared_ptr<Slot> waiting;               // guarded by mutex_
    Task on_done;                                // guarded by mutex_; of `waiting`
    bool closing = false;                        // guarded by mutex_; found by on_done() alone
    std::atomic<bool> waits_for_tensors{false};  // some thread is in wait_tensors()
  };

  // An opening that is on its way, or whose result nobody has fetched.
  struct Opening {
    StreamSpec spec;
    std::shared_ptr<Entry> entry;
    std::shared_ptr<Slot> slot;
    std::shared_ptr<StreamId> id;  // once the slot is done
  };

  Opening begin_open(StreamSpec spec, std::shared_ptr<Entry> entry, bool all_on_device);
  // On the loop: runs `turn` when what the program called on the stream before is done, as HostStagedStream::call()
  // does; at once, and without a thought of it, where `is_staged`, the entry's, is false.
  template <class Turn>
  void in_turn(bool is_staged, StreamId stream, Turn turn) const;
  // On the loop, of one with tensors of a GPU: `opened` once, when it is known how they travel.
  void choose_way(StreamId stream, bool all_on_device, Done opened);
  // On the loop: it works on the GPU's memory; `nccl` may be null. An error is one of the device.
  Status go_on_device(GradientStream& stream, net::DeviceCollectives* nccl, bool encodes);
  // On the loop: whether that went well. A stream that cannot be is closed.
  void settle_way(StreamId stream, const Status& status, bool on_device);
  // On the loop: null where all its tensors are in the host's memory.
  HostStagedStream* staged(StreamId stream) const;
  void wait_on_loop(bool is_staged, StreamId stream, Done complete) const;
  // The wait has ended before the stream heard of it.
  void end_wait(Entry& entry, const std::shared_ptr<Slot>& waiting, const Status& cause);
  // Runs `ask` on the loop and waits for its answer, which may come later.
  Status on_loop(StreamId stream, const std::function<void(GradientStream&, Done)>& ask) const;
  std::shared_ptr<Entry> find(StreamId stream) const;
  // With mutex_ held: opens entry->waiting.
  void begin_wait(StreamId stream, const std::shared_ptr<Entry>& entry);
  void call_done(Entry& entry);
  Status check(const Entry& entry, int index, const TensorView& tensor) const;
  std::optional<Status> sleep_until_reduced(StreamId stream, std::span<const int> tensors, Duration timeout);

  Loop& loop_;
  Engine& engine_;
  Waiter& waiter_;
  const Rank rank_;
  const int size_;            // of the job
  mutable std::mutex mutex_;  // streams come and go rarely; a lookup per tensor is short
  std::unordered_map<StreamId, std::shared_ptr<Entry>> entries_;
  std::unordered_map<std::string, Opening> openings_;  // guarded by mutex_; by agreed name
  bool ended_ = false;
  DeviceStage* stage_ = nullptr;  // set, as the next, before the first stream that needs it is open
  DeviceTransport* plane_ = nullptr;
  net::Collectives* host_ = nullptr;
  bool encodes_ = false;
  // Loop thread:
  std::unordered_map<StreamId, std::shared_ptr<HostStagedStream>> staged_;
};

}  // namespace sirtaki::engine
