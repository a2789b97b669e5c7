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
  // On the loop: runs `then` when no call that came before waits for a GPU any more; immediately if none does.
  void after_calls(Task then) const;
  // Requires a stopped loop, on which nothing completes any more. Runs the functions of StreamHandle::on_done().
  void end();

 private:
  friend class StreamHandle;

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
  // On the loop, of one with tensors of a GPU: `opened` once, when it is known how they travel.
  void choose_way(StreamId stream, bool all_on_device, Done opened);
  // On the loop: it works on the GPU's memory; `nccl` may be null. An error is one of the device.
  Status go_on_device(GradientStream& stream, net::DeviceCollectives* nccl, bool encodes);
  // On the loop: whether that went well. A stream that cannot be is closed.
  void settle_way(StreamId stream, const Status& status, bool on_device);
  // On the loop: null where all its tensors are in the host's memory.
  HostStagedStream* staged(StreamId stream) const;
  std::shared_ptr<Entry> find(StreamId stream) const;
  void call_done(Entry& entry);

  Loop& loop_;
  Engine& engine_;
  Waiter& waiter_;
  const std::function<Task(Task)> counted_;
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
