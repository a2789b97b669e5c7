// Server: the meeting point of a job. Authenticates connections, forms epochs, relays control messages, watches lives.
//
// Started by the launcher, or by rank 0 when another launcher gave us rank, size and address. One control thread.
// A connection first proves the job's secret (handshake.h), within a deadline; strangers and junk are dropped, counted
// and logged at a limited rate, and never disturb the job.
// An epoch forms when all ranks 0..size-1 have joined; the versions and agreed options must be equal, else every rank
// gets one error that names option, ranks and values. So does every rank when one of those that wait for the epoch
// ends. After all have left, the next epoch may form on the same server; ranks that join before that wait, within the
// join timeout. A failed attempt is over when all its ranks have got the error, or when one of them joins again. A
// member is lost when its connection ends without leave(), or when nothing came from it for the heartbeat timeout. All
// members are told of a loss or a leave before the handler is; of leaves within 20 ms, those that leave together in one
// notice. Wakes up once a heartbeat interval and for the answers
// while somebody is connected; never when nobody is. What the messages mean is the handler's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::rendezvous {

// Called on the server's loop.
class ServerHandler {
 public:
  virtual ~ServerHandler() = default;
  virtual void on_epoch(const Membership& membership) = 0;
  virtual void on_message(Rank from, ConstBytes message) = 0;
  virtual void on_tree(Rank from, ConstBytes message) {  // on behalf of several ranks
    static_cast<void>(from), static_cast<void>(message);
  }
  virtual void on_left(Rank rank) = 0;                       // after leave()
  virtual void on_lost(Rank rank, const Status& cause) = 0;  // died, silent, or broke the protocol
  virtual void on_epoch_end() = 0;                           // everybody has left or is lost
  // A line for the log: refused connections (at a limited rate), attempts to form an epoch that failed.
  virtual void on_warning(const std::string& line) { static_cast<void>(line); }
};

struct ServerOptions {
  std::string bind_address = "127.0.0.1";  // "::" or "0.0.0.0" for jobs over several hosts
  std::uint16_t port_first = 0;            // 0: any free port; else the first free one in [port_first, port_last]
  std::uint16_t port_last = 0;
  Secret secret;
  int size = 0;  // ranks of the job
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration join_timeout = std::chrono::seconds(60);  // from the first join to a full epoch; the error names the absent
  Duration heartbeat_interval = default_config().control.heartbeat_interval;
  Duration heartbeat_timeout = default_config().control.heartbeat_timeout;
  // Connections that have not proved the secret, beyond one per rank; the oldest makes room for a new one.
  int max_unauthenticated = 64;
  // How long the end of a connection may be held back until report_exit() says why. Zero: the owner does not report
  // exits. An owner that does sets kExitReportWait.
  Duration exit_report_wait = Duration::zero();
};
inline constexpr Duration kExitReportWait = std::chrono::milliseconds(150);

class Server {
 public:
  // `handler` and `loop` outlive the server. Any thread but the loop's. kUnavailable when the address or the ports
  // cannot be had, kInvalidArgument for bad options.
  static Result<std::unique_ptr<Server>> start(AsioLoop& loop, ServerOptions options, ServerHandler& handler);
  // Closes the port and all connections; no callback runs after it. Any thread.
  virtual ~Server() = default;

  virtual std::uint16_t port() const = 0;
  // Loop thread. Sends to a member of the current epoch, in order; silently nothing when it is gone. At most
  // kMaxMessage bytes (frame.h).
  virtual void send(Rank to, ConstBytes message) = 0;
  // The same to a member for several ranks, at most kMaxTree bytes.
  virtual void send_tree(Rank to, ConstBytes message) = 0;
  // Loop thread. `rank` will leave before long: the others are told now that it has, on_left() comes when it does, or
  // when its connection ends without; it cannot be lost any more.
  virtual void announce_leave(Rank rank) = 0;
  // Loop thread. Tells the server why a rank's process ended ("killed by signal 9 (Killed)"); if its connection is
  // still open it counts as lost now, and the text becomes part of the cause that everybody sees. A rank whose process
  // has ended cannot join: those that wait for it get an error at once. A new join of that rank takes the report back.
  virtual void report_exit(Rank rank, const std::string& what) = 0;
  // Loop thread. Clock offset of a member against the server (member clock - server clock), from heartbeats.
  virtual Duration clock_offset(Rank rank) const = 0;
  // Connections refused so far; for tests and --verbose. Any thread.
  virtual std::uint64_t strangers() const = 0;
};

}  // namespace sirtaki::rendezvous
