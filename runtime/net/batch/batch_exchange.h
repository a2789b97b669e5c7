// BatchExchange: allreduces of little data among the ranks of one host, many of them in one message.
//
// A rank writes the inputs of the operations that it has started into one block of its shared memory, with a table of
// their tags, and sends one message about the block to every other rank. Ranks need no agreement on the content of a
// batch: each batch may hold other operations, in another order. An operation is summed, in rank order, once the inputs
// of all ranks are there.
// A rank sends at most kUnanswered batches that another rank has not read yet; operations that start meanwhile go with
// the next batch. Batches therefore grow while the ranks are busy, and a single operation leaves at once. The loop of a
// rank reads a batch even if its program has not started the operations in it, so no operation waits for another one.
// An input without room in shared memory follows as a message of its operation, which waits until it is received.
// Owned by DirectCollectives. Thread: the loop of the link.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/net/batch/batch_table.h"
#include "runtime/net/link/mismatch.h"
#include "runtime/net/link/point_to_point.h"
#include "runtime/net/link/tombstones.h"
#include "runtime/net/shm/shared_memory.h"

namespace sirtaki::net {

// An allreduce in a batch.
class BatchMember {
 public:
  BatchMember() = default;
  BatchMember(const BatchMember&) = delete;
  BatchMember& operator=(const BatchMember&) = delete;
  virtual ~BatchMember() = default;

  virtual OpTag tag() const = 0;
  virtual std::int32_t priority() const = 0;
  virtual Expectation expectation() const = 0;
  virtual ConstBytes input() const = 0;

  // Sends the input to all ranks in messages of the operation, and calls `then` for each that has left.
  virtual void send_input(MoveFunction<void()> then) = 0;
  // Receives the input of `peer` from a message of the operation, into memory of the operation.
  virtual void receive_input(Rank peer, MoveFunction<void(ConstBytes)> then) = 0;
  // Computes the result from the inputs of all ranks and ends the operation. Does nothing if it has failed.
  virtual void reduce(const std::vector<const std::byte*>& inputs) = 0;
  // Ends the operation, which calls remove().
  virtual void fail_member(const Status& cause) = 0;
};

class BatchExchange : public std::enable_shared_from_this<BatchExchange> {
 public:
  // Limit of the size of an operation; larger ones would leave little room for others.
  static constexpr std::size_t kMostBytes = std::size_t{64} * 1024;

  // The input of another rank: its sender and its arguments.
  struct Announced {
    Rank peer = -1;
    Expectation there;
  };
  // `on_announced` is called for each input of an operation that has not been added here.
  BatchExchange(PointToPoint& link, std::shared_ptr<SharedMemory> shared,
                MoveFunction<void(OpTag, const Announced&)> on_announced);

  // Reads batches from now on. A rank that starts no operation reads none, since nobody can complete one without it.
  void open();
  // Takes part in an operation, which stays until it is reduced or removed.
  void add(const std::shared_ptr<BatchMember>& member);
  // Ends the part of a failed operation. Inputs of other ranks are dropped, those that arrive later included.
  void remove(OpTag tag, const Status& cause);
  // Drops the inputs of `tags` that no operation has taken, those that arrive later included.
  void cancel(const TagGroup& tags, const Status& cause);
  void forget(const TagGroup& tags) { dropped_.forget(tags); }

  // Returns an input that has arrived for an operation that has not been added here.
  std::optional<Announced> announced(OpTag tag) const;
  // Tells all ranks that this rank takes part in `tag` with other arguments, which no batch can hold.
  void refuse(OpTag tag, const Expectation& here, const Status& cause);

 private:
  static constexpr std::uint32_t kUnanswered = 4;
  static constexpr std::uint32_t kAnswerAfter = kUnanswered / 2;
  // More messages than a peer can have on the way, so that each finds a receive and none is overtaken by a later
  // message of another operation.
  static constexpr std::uint32_t kReceives = 2 * kUnanswered;

  struct Input {
    bool here = false;
    ConstBytes data;
    Expectation there;
    bool follows = false;
    std::shared_ptr<const SharedView> block;
  };
  struct Row {
    std::shared_ptr<BatchMember> member;  // null: not added yet
    std::pair<std::int32_t, std::uint64_t> place;
    bool sent = false;
    int missing = 0;  // inputs, and messages with the own one that have not left
    std::vector<Input> inputs;
    std::vector<std::pair<Rank, Input>> next;  // for the next operation with this tag
  };
  // An operation to send: a member, or a refusal.
  struct Queued {
    OpTag tag;
    Expectation here;
    bool refusal = false;
  };
  struct Peer {
    std::uint32_t answered = 0;  // batches of this rank that the peer has read
    std::uint32_t read = 0;      // batches of the peer read here
    std::uint32_t told = 0;      // batches of the peer that it knows to be read
    bool lost = false;
  };

  // The most urgent of all messages: small, and never overtaken by one that was sent later.
  Envelope envelope(Rank peer) const { return {peer, kTag, 0, 0, std::numeric_limits<std::int32_t>::min()}; }
  // A tag that belongs to no operation: no stream has this number.
  static constexpr OpTag kTag{~std::uint64_t{0} - 1};

  Row& row_of(OpTag tag);
  void receive(Rank peer);
  void schedule();
  void turn();
  bool may_send() const;
  std::size_t choose(std::size_t& bytes) const;
  void send_batch();
  void send_notices(const BatchNotice& notice);
  void send_notice(Rank peer, BatchNotice notice);
  void mark_sent(const BatchRecord& record);
  void on_notice(Rank peer, const BatchNotice& notice);
  Status on_batch(Rank peer, const BatchNotice& notice);
  void on_record(Rank peer, const BatchRecord& record, ConstBytes data, std::shared_ptr<const SharedView> block);
  void on_input(OpTag tag, Rank peer, Input input);
  void fail_different(const Row& row, Rank peer);
  void take(OpTag tag, Row& row, Rank peer);
  void one_less(OpTag tag);
  void reduce_ready();
  void on_lost(Rank peer, const Status& status);

  PointToPoint& link_;
  const std::shared_ptr<SharedMemory> shared_;
  MoveFunction<void(OpTag, const Announced&)> on_announced_;
  std::unordered_map<OpTag, Row> rows_;
  std::map<std::pair<std::int32_t, std::uint64_t>, Queued> queue_;  // key: priority, then order
  std::uint64_t queued_ = 1;
  std::vector<Row> ready_;
  std::vector<Peer> peers_;
  std::uint32_t sent_ = 0;
  Tombstones dropped_;
  Status lost_;
  bool open_ = false;
  bool scheduled_ = false;
};

}  // namespace sirtaki::net
