// StreamTable: the open streams of a session and their opening; StreamHandle has the calls of one of them.
//
// Threads: any. Work on a stream is posted to the engine's loop. Owned by Session.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/engine/device/path_selector.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/host_staged_stream.h"
#include "runtime/engine/session/request_table.h"

namespace sirtaki::engine {

class StreamTable {
 public:
  static constexpr std::uint8_t kUsed = 1;
  static constexpr std::uint8_t kUsedCorrected = 2;

  // All must outlive the table. `engine` is used on the loop only. `counted` wraps a function that waits for a step.
  StreamTable(Loop& loop, Engine& engine, Waiter& waiter, std::function<Task(Task)> counted, Rank rank, int size)
      : loop_(loop), engine_(engine), waiter_(waiter), counted_(std::move(counted)), rank_(rank), size_(size) {}

  // On the loop, before the first stream with tensors of a GPU; all must outlive the table.
  void use(DeviceStage& stage, DeviceTransport& transport, const PathSelector& selector) {
    stage_ = &stage;
    transport_ = &transport;
    selector_.emplace(selector);
  }

  // After kTimeout, and kAborted of an interrupted wait, the opening goes on: another call with the same name and
  // tensors waits for it.
  Result<StreamId> open(StreamSpec spec, Duration timeout);
  // On the loop: runs `then` when no call that came before waits for a GPU any more; immediately if none does.
  void after_calls(Task then) const;
  // Requires a stopped loop, on which nothing completes any more. Runs the functions of StreamHandle::on_done().
  void end();

 private:
  friend class StreamHandle;

  struct Entry {
    std::string name;
    std::vector<std::string> tensors;  // names; constant
    std::vector<TensorView> views;     // size, dtype and device, without memory; constant
    bool staged = false;               // some are on a GPU; constant
    std::shared_ptr<StreamBoard> board;
    std::shared_ptr<Slot> waiting;               // guarded by mutex_
    Task on_done;                                // guarded by mutex_; runs when `waiting` completes
    bool closing = false;                        // guarded by mutex_; hides the entry from all calls but on_done()
    std::atomic<bool> waits_for_tensors{false};  // a thread is in wait_tensors()
  };

  // An opening in progress, or one whose result no call has fetched.
  struct Opening {
    StreamSpec spec;
    std::shared_ptr<Entry> entry;
    std::shared_ptr<Slot> slot;
    std::shared_ptr<StreamId> id;  // once the slot is done
  };

  Opening begin_open(StreamSpec spec, std::shared_ptr<Entry> entry, bool all_on_device);
  // On the loop, for a stream with tensors of a GPU: calls `opened` once the path of its gradients is set.
  void select_path(StreamId stream, bool all_on_device, Done opened);
  void take_path(StreamId stream, const DeviceSupport& support, net::DeviceCollectives* nccl, Done opened);
  // On the loop: routes the calls of the stream by way of the GPU, or closes it after an error.
  void finish_open(StreamId stream, const Status& status, bool on_device);
  // On the loop: returns null if all tensors of the stream are in host memory.
  HostStagedStream* staged(StreamId stream) const;
  std::shared_ptr<Entry> find(StreamId stream) const;
  void call_done(Entry& entry);

  Loop& loop_;
  Engine& engine_;
  Waiter& waiter_;
  const std::function<Task(Task)> counted_;
  const Rank rank_;
  const int size_;            // number of ranks
  mutable std::mutex mutex_;  // streams come and go rarely; a lookup per tensor is short
  std::unordered_map<StreamId, std::shared_ptr<Entry>> entries_;
  std::unordered_map<std::string, Opening> openings_;  // guarded by mutex_; by agreed name
  bool ended_ = false;
  DeviceStage* stage_ = nullptr;  // use() sets this and the next two
  DeviceTransport* transport_ = nullptr;
  std::optional<PathSelector> selector_;
  // Loop thread:
  std::unordered_map<StreamId, std::shared_ptr<HostStagedStream>> staged_;
};

}  // namespace sirtaki::engine
