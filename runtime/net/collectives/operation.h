// Operation: one collective in flight as a state machine over PointToPoint; base of the direct algorithms.
//
// Owned by: DirectCollectives, and by the callbacks of its own messages, so it lives until the last of them.
// Thread: the link's loop.
// Rule: the first error cancels the tag; the result is told when no message is in flight any more, so that the
// caller's memory is never touched afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/collectives/staging.h"
#include "runtime/net/collectives/turn_queue.h"
#include "runtime/net/link/hosts.h"
#include "runtime/net/link/point_to_point.h"
#include "runtime/net/shm/shared_memory.h"

namespace sirtaki::net {

struct DirectOptions {
  // Allreduce up to this size sends everything to everybody: one latency step instead of two. Same bits.
  std::size_t exchange_bytes = 32 * 1024;
  // Reductions go through pieces of at most this size, and at most `window` times this many bytes are in flight for
  // each peer: the staging memory of one operation is (ranks - 1) * window * segment_bytes.
  std::size_t segment_bytes = 512 * 1024;
  int window = 4;
  // Broadcasts up to this size go from the root to everybody; larger ones are scattered and passed on.
  std::size_t broadcast_bytes = 64 * 1024;
  // Where there are several with several ranks on some, an allreduce adds host by host.
  Hosts hosts;
  // Unused staging memory kept for the next operation.
  std::size_t keep_staging_bytes = std::size_t{64} * 1024 * 1024;

  // The same for collectives that do not go host by host.
  DirectOptions flat() const {
    DirectOptions options = *this;
    options.hosts = Hosts();
    return options;
  }
};

// A hash of everything that must be equal on all ranks (alltoall's counts differ by nature): Envelope::check.
std::uint32_t signature_of(const CollectiveArgs& args);

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  struct Setup {
    PointToPoint* link = nullptr;
    StagingPool* pool = nullptr;
    const DirectOptions* options = nullptr;
    TurnQueue* turns = nullptr;
    std::shared_ptr<SharedMemory> shared;  // null: everything over the link
    CollectiveArgs args;
    Done finished;  // once, never from inside run()
  };
  explicit Operation(Setup setup);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  void run();
  // Ends it with `cause` unless it has an error already.
  void fail(const Status& cause);
  // Forgets the caller: `finished` is destroyed uncalled.
  void drop();

 protected:
  virtual void begin() = 0;
  // Nothing is in flight any more, and the caller is about to be told.
  virtual void let_go() {}

  const CollectiveArgs& args() const { return setup_.args; }
  const DirectOptions& options() const { return *setup_.options; }
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t item() const { return dtype_size(setup_.args.dtype); }
  bool running() const { return status_.ok(); }
  bool one_host() const { return setup_.link->one_host(); }
  Duration link_round_trip() const { return setup_.link->round_trip(); }

  Staging staging(std::size_t bytes) { return setup_.pool->take(bytes); }
  // `then` runs when the message succeeded and the operation still runs. `check`: what both sides must agree on that
  // the arguments do not say.
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
  // `then` touches so many bytes. It runs in a turn of its own, after more urgent ones, if the operation still runs; at
  // once where that takes less time than a turn.
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
