// InprocGroup and InprocEndpoint: PointToPoint between ranks of one process, without sockets.
//
// For: tests, jobs of one rank and the simulator. Messages are copied once and handed over through Loop::post (after
// Loop::after when a delay is given), so any Loop drives it: one simulated loop for all ranks, or a thread each.
// Owned by: the group is shared by its endpoints; an endpoint lives on its loop and is made and destroyed there.
// Messages from one rank to another arrive in the order in which they were sent, for any delays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "runtime/net/link/point_to_point.h"
#include "runtime/net/link/tag_table.h"
#include "runtime/net/link/tombstones.h"

namespace sirtaki::net {

enum class MessageFate { kDeliver, kDrop, kKillSender };

struct LocalOptions {
  // Returns the latency of a message; called on the sender's loop. Empty: no delay.
  std::function<Duration(Rank from, Rank to, std::size_t bytes)> delay;
  // Bandwidth of the uplink of one rank, which sends by priority and in fragments; 0: no limit.
  double bytes_per_second = 0;
  std::size_t fragment_bytes = 64 * 1024;
  // Fault injection; called on the sender's loop for every message. Empty: kDeliver.
  std::function<MessageFate(Rank from, const Envelope& envelope, std::size_t bytes)> fate;
};

class InprocEndpoint;

class InprocGroup : public std::enable_shared_from_this<InprocGroup> {
 public:
  static std::shared_ptr<InprocGroup> create(int size, LocalOptions options = {});
  ~InprocGroup();

  int size() const;
  // Returns the endpoint of `rank` on `loop`, which must outlive it. At most one exists at a time. Messages that were
  // sent to `rank` earlier are delivered.
  std::unique_ptr<InprocEndpoint> endpoint(Rank rank, Loop& loop);
  // Ends `rank` as if its process had died: its own operations end with `cause`, operations of others that involve it
  // with kPeerLost, and none of its messages arrives any more. Any thread.
  void kill(Rank rank, const Status& cause);

 private:
  friend class InprocEndpoint;
  struct Port;
  struct Link;
  struct Packet;
  InprocGroup(int size, LocalOptions options);
  void dispatch(Rank from, Rank to, Packet packet, Loop& sender);
  void hand_over(Rank to, Packet packet);
  void arrive(Rank to, Packet packet);
  void detach(Rank rank);

  const LocalOptions options_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<Link>> links_;  // from * size + to; each used on the sender's loop only
};

class InprocEndpoint final : public PointToPoint {
 public:
  ~InprocEndpoint() override;

  Rank rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  Loop& loop() override { return loop_; }
  void send(const Envelope& envelope, ConstBytes data, Done done) override;
  void recv(const Envelope& envelope, Bytes out, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void forget(const TagGroup& tags) override { tombstones_.forget(tags); }
  void fail(Status cause) override;

  // Called once for each rank that died.
  void set_on_peer_lost(MoveFunction<void(Rank, Status)> callback) { on_peer_lost_ = std::move(callback); }

 private:
  friend class InprocGroup;
  struct Posted {
    std::uint32_t check;
    Bytes out;
    Done done;
  };
  struct Arrived {
    std::uint32_t check;
    std::vector<std::byte> data;
  };
  // A message in the queue of the uplink; its bytes are copied when the last one has left.
  struct Leaving {
    Envelope envelope;
    ConstBytes data;
    std::size_t left = 0;
    Done done;
  };
  struct Peer {
    TagTable<Posted> posted;
    TagTable<Arrived> arrived;
    Status lost;
  };

  InprocEndpoint(std::shared_ptr<InprocGroup> group, Rank rank, Loop& loop);
  Status refuse(const Envelope& envelope) const;  // the reason why an operation cannot start; ok otherwise
  void match(const Envelope& envelope, Posted posted, Arrived arrived);
  void on_message(const Envelope& envelope, std::vector<std::byte> data);
  void on_mismatch(Rank peer, OpTag tag, const Status& cause);
  void on_lost(Rank peer, const Status& cause);
  void complete(Done done, Status status);
  void put_on_the_way(const Envelope& envelope, ConstBytes data);
  void queue(const Envelope& envelope, ConstBytes data, Done done);
  void send_fragment();
  void on_fragment_sent(std::int32_t priority, std::size_t bytes);
  template <class Selects>
  void drop_queued(Selects selects, const Status& cause);

  std::shared_ptr<InprocGroup> group_;
  const Rank rank_;
  Loop& loop_;
  std::vector<Peer> peers_;
  std::map<std::int32_t, std::deque<Leaving>> leaving_;  // key: priority
  TimerId fragment_;                                     // on the uplink now
  Tombstones tombstones_;
  Status failed_;
  MoveFunction<void(Rank, Status)> on_peer_lost_;
};

}  // namespace sirtaki::net
