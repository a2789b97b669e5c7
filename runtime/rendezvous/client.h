// Client: one rank's connection to the Server, on its own control thread, so that heartbeats survive a busy data plane.
//
// Owned by: Session. At most 10 wake-ups a second when idle. One client takes part in one epoch; the next epoch takes a
// new client, which is cheap.
// Destroying a client that has not left closes its connection: to everybody else this rank is then lost.
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

// Called on the client's loop, between a join that succeeded and leave() or the destructor.
class ClientHandler {
 public:
  virtual ~ClientHandler() = default;
  virtual void on_message(ConstBytes message) = 0;                          // from the server's handler
  virtual void on_tree(ConstBytes message) { static_cast<void>(message); }  // the same, for several ranks
  virtual void on_lost(Rank rank, const Status& cause) = 0;  // another member died or is silent; blame names it
  virtual void on_left(Rank rank) = 0;                       // another member left in order
  virtual void on_disconnected(const Status& cause) = 0;     // the server is gone or gave us up; once, last callback
};

struct ClientOptions {
  std::string server;  // "host:port" or "[v6]:port"
  Secret secret;
  Duration connect_timeout = std::chrono::seconds(30);  // retries until then: the server may start later
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration join_timeout = std::chrono::seconds(120);  // the server's own, shorter, names who is absent
  Duration heartbeat_interval = default_config().control.heartbeat_interval;  // the server's; it sends, we answer
  Duration heartbeat_timeout = default_config().control.heartbeat_timeout;    // without a sign of life from the server
};

class Client {
 public:
  // Connects and authenticates; blocks within connect_timeout. Any thread but the loop's. `cancelled` (may be empty) is
  // polled at least ten times a second by the thread that is in connect() or join(), so that Ctrl-C ends it; a true
  // answer gives kAborted. `loop` and `handler` outlive the client.
  // kUnavailable: no server within connect_timeout, or it has another secret. kMismatch: another protocol version.
  static Result<std::unique_ptr<Client>> connect(AsioLoop& loop, ClientOptions options, ClientHandler& handler,
                                                 MoveFunction<bool()> cancelled);
  ~Client();

  // The local address the connection uses: the one that routes to the server, hence the default for data endpoints.
  std::string local_address() const { return local_address_; }
  // Joins; blocks until the epoch has formed or failed. Callbacks may come even before it returns. Once per client;
  // after a failure the client is of no more use and no callback runs. Any thread but the loop's.
  Result<Membership> join(const JoinRequest& request);
  // Any thread; queued in order, at most kMaxMessage bytes (frame.h). Before join() has succeeded messages are dropped;
  // later too when the connection is gone (on_disconnected has told, or will).
  void send(std::vector<std::byte> message) { send(FrameType::kMessage, std::move(message)); }
  // The same on behalf of several ranks, at most kMaxTree bytes.
  void send_tree(std::vector<std::byte> message) { send(FrameType::kTree, std::move(message)); }
  // Tells the server that this rank goes, waits at most `grace` until the server has confirmed, closes. Messages sent
  // before are delivered before. From its start no callback begins, after it none runs. Any thread but the loop's;
  // idempotent.
  void leave(Duration grace);
  std::uint64_t messages_sent() const { return sent_.load(std::memory_order_relaxed); }  // without heartbeats

 private:
  // The part on the loop. Shared, so that tasks still queued for it are harmless after the client is gone.
  class Core;

  Client(AsioLoop& loop, ClientOptions options, std::shared_ptr<Core> core, MoveFunction<bool()> cancelled);
  Status start(Dialed dialed);
  void send(FrameType type, std::vector<std::byte> message);
  void close();
  Result<Membership> wait_for_join();

  AsioLoop& loop_;
  const ClientOptions options_;
  const std::shared_ptr<Core> core_;
  MoveFunction<bool()> cancelled_;
  std::string local_address_;
  std::atomic<std::uint64_t> sent_{0};
};

}  // namespace sirtaki::rendezvous
