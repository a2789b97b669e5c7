// Operation: one collective in flight as a state machine over PointToPoint; base of the direct algorithms.
//
// Owned by: DirectCollectives and the callbacks of its messages, so it lives until the last of them.
// Thread: the loop of the link.
// Rule: the first error cancels the tag. `finished` is called once no message is in flight, so the memory of the caller
// is never touched afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/collectives/staging.h"
#include "runtime/net/collectives/turn_queue.h"
#include "runtime/net/link/hosts.h"
#include "runtime/net/link/mismatch.h"
#include "runtime/net/link/point_to_point.h"
#include "runtime/net/shm/shared_memory.h"

namespace sirtaki::net {

struct DirectOptions {
  // An allreduce up to this size sends all data to all ranks: one latency step instead of two, and the same bits.
  std::size_t exchange_bytes = 32 * 1024;
  // Reductions are cut into segments of at most this size, of which at most `window` are in flight for each peer: the
  // staging memory of one operation is (ranks - 1) * window * segment_bytes.
  std::size_t segment_bytes = 512 * 1024;
  int window = 4;
  // A broadcast up to this size is sent by the root to all ranks; a larger one is scattered, then gathered.
  std::size_t broadcast_bytes = 64 * 1024;
  // With several hosts, at least one with several ranks, an allreduce adds host by host.
  Hosts hosts;
  // Limit of unused staging memory that is kept for later operations.
  std::size_t keep_staging_bytes = std::size_t{64} * 1024 * 1024;

  // Returns these options for collectives that do not reduce host by host.
  DirectOptions flat() const {
    DirectOptions options = *this;
    options.hosts = Hosts();
    return options;
  }
};

// Returns the fingerprint of all arguments that must be equal on all ranks, for Envelope::check. The counts of an
// alltoall are not among them.
std::uint32_t signature_of(const CollectiveArgs& args, const DirectOptions& options);
// Returns the largest allreduce in one exchange that the arguments allow, or the options where these leave it open.
std::size_t most_at_once(const CollectiveArgs& args, const DirectOptions& options);

class BatchExchange;

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  struct Setup {
    PointToPoint* link = nullptr;
    StagingPool* pool = nullptr;
    const DirectOptions* options = nullptr;
    TurnQueue* turns = nullptr;
    std::shared_ptr<SharedMemory> shared;  // null: all data is sent over the link
    BatchExchange* batches = nullptr;      // null: no operation goes in a batch
    CollectiveArgs args;
    Done finished;  // called once, never from inside run()
  };
  explicit Operation(Setup setup);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  void run();
  // Ends the operation with `cause` unless it has an error already.
  void fail(const Status& cause);
  // Detaches the caller: `finished` is destroyed without a call.
  void drop();
  // Returns whether the operation goes in a batch.
  virtual bool batched() const { return false; }
  // Returns what a rank with the same arguments has, too.
  Expectation expectation() const { return {setup_.args.in.size(), check_}; }

 protected:
  virtual void begin() = 0;
  // Called once no message is in flight, before `finished`.
  virtual void let_go() {}
  // Called once, when the operation gets its first error.
  virtual void on_failed(const Status& /*cause*/) {}

  const CollectiveArgs& args() const { return setup_.args; }
  const DirectOptions& options() const { return *setup_.options; }
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t item() const { return dtype_size(setup_.args.dtype); }
  bool running() const { return status_.ok(); }
  bool one_host() const { return setup_.link->one_host(); }
  Duration link_round_trip() const { return setup_.link->round_trip(); }

  BatchExchange& batches() const { return *setup_.batches; }
  Loop& loop() const { return setup_.link->loop(); }
  Staging staging(std::size_t bytes) { return setup_.pool->take(bytes); }
  // Runs `then` if the message succeeded and the operation is still running. `check` extends the fingerprint of the
  // arguments.
  template <class Then>
  void send(Rank peer, std::uint32_t slot, ConstBytes data, Then then, std::uint32_t check = 0) {
    ++pending_;
    setup_.link->send(envelope(peer, slot, check), data, completion(std::move(then)));
  }
  void send(Rank peer, std::uint32_t slot, ConstBytes data) {
    send(peer, slot, data, [] {});
  }
  template <class Then>
  void recv(Rank peer, std::uint32_t slot, Bytes out, Then then, std::uint32_t check = 0) {
    ++pending_;
    setup_.link->recv(envelope(peer, slot, check), out, completion(std::move(then)));
  }
  // Returns a callback for work that keeps the operation alive, and runs `then` as messages do.
  template <class Then>
  Done pending(Then then) {
    ++pending_;
    return completion(std::move(then));
  }
  // Runs `then`, which touches so many bytes, in a turn of its own, after more urgent ones, if the operation is still
  // running. Work that takes less time than a turn runs at once.
  template <class Then>
  void turn(TurnQueue::Effect effect, std::size_t bytes, Then then) {
    if (bytes <= kAtOnceBytes) {
      then();
      return;
    }
    ++pending_;
    setup_.turns->add(setup_.args.priority, effect, completion(std::move(then)));
  }
  SharedMemory& shared() { return *setup_.shared; }

 private:
  static constexpr std::size_t kAtOnceBytes = std::size_t{64} * 1024;

  Envelope envelope(Rank peer, std::uint32_t slot, std::uint32_t check) const;
  void settle(const Status& status);
  void release();

  template <class Then>
  Done completion(Then then) {
    return [self = shared_from_this(), then = std::move(then)](const Status& status) mutable {
      self->settle(status);
      if (self->running()) {
        then();
      }
      self->release();
    };
  }

  Setup setup_;
  const Rank rank_;
  const int size_;
  const std::uint32_t check_;
  int pending_ = 0;  // messages in flight, and one while begin() runs
  Status status_;
};

}  // namespace sirtaki::net
