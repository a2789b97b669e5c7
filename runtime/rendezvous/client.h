// Client: the connection of a rank to the Server. It has a control thread of its own, so that a busy data plane delays
// no heartbeat.
//
// Owned by: Session. Wakes up at most 10 times a second when idle. A client takes part in one epoch; make a new client,
// which is cheap, for the next. Only in elastic jobs one client serves for all epochs of its process. If a client is
// destroyed before leave(), the other ranks take this rank for lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/dial.h"
#include "runtime/rendezvous/link/frame.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::rendezvous {

// Called on the loop of the client, from the success of join() until leave() or the destructor.
class ClientHandler {
 public:
  virtual ~ClientHandler() = default;
  virtual void on_message(ConstBytes message) = 0;                          // sent by the handler of the server
  virtual void on_tree(ConstBytes message) { static_cast<void>(message); }  // the same, on behalf of several ranks
  virtual void on_notice(ConstBytes notice) { static_cast<void>(notice); }  // sent by the handler, in an elastic job
  virtual void on_lost(Rank rank, const Status& cause) = 0;  // another member died or is silent; cause.blame() names it
  virtual void on_left(Rank rank) = 0;                       // another member has left
  // The server is gone, or takes this rank for lost. Called once, as the last callback.
  virtual void on_disconnected(const Status& cause) = 0;
};

struct ClientOptions {
  std::string server;  // "host:port" or "[v6]:port"
  Secret secret;
  Duration connect_timeout = std::chrono::seconds(30);  // connect() retries so long: the server may start later
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration join_timeout = std::chrono::seconds(120);  // longer than on the server, whose error names absent ranks
  // Interval at which the server sends heartbeats, which the client answers; equal on both.
  Duration heartbeat_interval = default_config().control.heartbeat_interval;
  // Silence after which the server counts as gone.
  Duration heartbeat_timeout = default_config().control.heartbeat_timeout;
};

class Client {
 public:
  // Connects and authenticates; blocks for at most connect_timeout. connect() and join() poll `cancelled` (may be
  // empty) on the calling thread at least ten times a second; true ends them with kAborted, for Ctrl-C. `loop` and
  // `handler` outlive the client. Any thread but the loop thread.
  // kUnavailable: no server answered within connect_timeout, or its secret differs. kMismatch: another protocol
  // version.
  static Result<std::unique_ptr<Client>> connect(AsioLoop& loop, ClientOptions options, ClientHandler& handler,
                                                 MoveFunction<bool()> cancelled);
  ~Client();

  // Returns the local address of the connection. It routes to the server, hence it is the default for data endpoints.
  std::string local_address() const { return local_address_; }
  // Joins the next epoch; blocks until it has formed or failed. Callbacks may run before it returns. Call it once; in
  // an elastic job call it again for each epoch. After a failure no callback runs, and the client can only be
  // destroyed; after a loss of the connection it returns the cause. Any thread but the loop thread.
  Result<Membership> join(const JoinRequest& request);
  // Returns the rank in the epoch that join() has returned: in an elastic job the choice of the server, else that of
  // the request.
  Rank rank() const { return rank_; }
  // Returns the notice of the handler of the server that came with this rank in an elastic job.
  const std::vector<std::byte>& notice() const { return notice_; }
  // Queues a message of at most kMaxMessage bytes (frame.h), in order. Drops it before join() has succeeded, and after
  // the connection has ended, which on_disconnected() reports. Any thread.
  void send(std::vector<std::byte> message) { send(FrameType::kMessage, std::move(message)); }
  // Queues a message on behalf of several ranks, of at most kMaxTree bytes.
  void send_tree(std::vector<std::byte> message) { send(FrameType::kTree, std::move(message)); }
  // Queues a report to the handler of the server about this member of an elastic job; dropped like a message. Any
  // thread.
  void report(std::vector<std::byte> report) { send(FrameType::kNotice, std::move(report)); }
  // Drops events and messages of the epoch from now on, until join() has returned another one. Loop thread.
  void end_epoch();
  // Leaves the epoch after all queued messages, waits at most `grace` for the answer of the server, and closes the
  // connection. No callback begins after leave() has begun, and none runs after it has returned. Any thread but the
  // loop thread; idempotent.
  void leave(Duration grace);
  // Closes the connection without a word, so the server takes this rank for lost. No callback begins after this, and
  // the client can only be destroyed. Any thread but the loop thread; idempotent.
  void close();
  std::uint64_t messages_sent() const { return sent_.load(std::memory_order_relaxed); }  // without heartbeats

 private:
  // State used on the loop. Shared, so that tasks still queued there are harmless after the client is destroyed.
  class Core;

  Client(AsioLoop& loop, ClientOptions options, std::shared_ptr<Core> core, MoveFunction<bool()> cancelled);
  Status start(Dialed dialed);
  void send(FrameType type, std::vector<std::byte> message);
  Result<Seat> wait_for_join();

  AsioLoop& loop_;
  const ClientOptions options_;
  const std::shared_ptr<Core> core_;
  MoveFunction<bool()> cancelled_;
  std::string local_address_;
  Rank rank_ = -1;
  std::vector<std::byte> notice_;
  std::atomic<std::uint64_t> sent_{0};
};

}  // namespace sirtaki::rendezvous
