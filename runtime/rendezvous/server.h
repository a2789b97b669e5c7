// Server: the meeting point of a job. Authenticates connections, forms epochs, carries messages, detects losses.
//
// Owned by: CoordinatorServer, in the launcher or in the process of rank 0. One control thread, which wakes up once a
// heartbeat interval and for answers while a peer is connected, else never. Messages are opaque; the handler reads
// them.
//
// Strangers: a connection must prove the secret of the job (handshake.h) before a deadline. Other connections are
// dropped, counted and logged at a limited rate, and never disturb the job.
//
// Epochs: an epoch forms when all ranks 0..size-1 have joined with equal versions and agreed options; else every rank
// gets the same error, which names the option, the ranks and the values. Every rank also gets one error if the process
// or the connection of a waiting rank ends. The next epoch forms after all members have left or are lost; ranks that
// join earlier wait, within the join timeout. A failed attempt is over when all its ranks have received the error, or
// when one of them joins again.
//
// Elastic jobs (ServerOptions::elastic): a connection lasts for the life of its process, over several epochs, and the
// handler decides which peers form an epoch and when it ends. The server keeps authentication, heartbeats and losses. A
// peer that does not fit to those that came before is refused alone, and so is one that comes when an epoch has formed,
// unless the job grows. Ranks change from epoch to epoch; the rank with which a process was started is its slot.
//
// Losses: a member is lost if its connection ends without leave(), or if nothing was received from it for the heartbeat
// timeout. Members are notified of a loss or a leave before the handler is; leaves within 20 ms share one notice.
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

// One connection of an elastic job; numbers are never used again.
using PeerId = Id<struct PeerIdTag, std::uint64_t>;

// Called on the loop of the server.
class ServerHandler {
 public:
  virtual ~ServerHandler() = default;
  virtual void on_epoch(const Membership& membership) = 0;
  virtual void on_message(Rank from, ConstBytes message) = 0;
  virtual void on_tree(Rank from, ConstBytes message) {  // on behalf of several ranks
    static_cast<void>(from), static_cast<void>(message);
  }
  virtual void on_left(Rank rank) = 0;                       // after leave()
  virtual void on_lost(Rank rank, const Status& cause) = 0;  // the rank died, is silent, or broke the protocol
  virtual void on_epoch_end() = 0;                           // every member has left or is lost
  // ---- elastic jobs only, where on_lost() and on_epoch() are not called ----
  // A process waits for the next epoch, for the first time or again; `report` is that of its JoinRequest.
  virtual void on_waiting(PeerId peer, Rank slot, ConstBytes report) {
    static_cast<void>(peer), static_cast<void>(slot), static_cast<void>(report);
  }
  // A member reports something about itself.
  virtual void on_report(PeerId peer, ConstBytes report) { static_cast<void>(peer), static_cast<void>(report); }
  // A process has left in order; `at_end`: not while it waited for an epoch. on_left() comes, too, for a member.
  virtual void on_quit(PeerId peer, bool at_end) { static_cast<void>(peer), static_cast<void>(at_end); }
  // A process is lost. The epoch goes on until the handler ends it.
  virtual void on_gone(PeerId peer, const Status& cause) { static_cast<void>(peer), static_cast<void>(cause); }
  // The process of a slot has ended that is not connected.
  virtual void on_absent(Rank slot, const Status& cause) { static_cast<void>(slot), static_cast<void>(cause); }
  // ----
  // Gives a line for the log: refused connections (at a limited rate), failed attempts to form an epoch.
  virtual void on_warning(const std::string& line) { static_cast<void>(line); }
};

struct ServerOptions {
  std::string bind_address = "127.0.0.1";  // "::" or "0.0.0.0" for jobs over several hosts
  std::uint16_t port_first = 0;            // 0: any free port; else the first free one in [port_first, port_last]
  std::uint16_t port_last = 0;
  Secret secret;
  int size = 0;          // number of ranks of the job; in an elastic one that grows, of its slots
  bool elastic = false;  // the handler forms the epochs; join_timeout has no effect
  bool grows = false;    // processes may come to an elastic job later, for slots without one
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration join_timeout = std::chrono::seconds(60);  // from the first join to the last; the error names absent ranks
  Duration heartbeat_interval = default_config().control.heartbeat_interval;
  Duration heartbeat_timeout = default_config().control.heartbeat_timeout;
  // Limit of unauthenticated connections, beyond one per rank; a new one replaces the oldest.
  int max_unauthenticated = 64;
  // Time that the end of a connection waits for report_exit() to give the reason. Zero if the owner never calls
  // report_exit(), else kExitReportWait.
  Duration exit_report_wait = Duration::zero();
};
inline constexpr Duration kExitReportWait = std::chrono::milliseconds(150);

class Server {
 public:
  // Listens. `handler` and `loop` outlive the server. kUnavailable: the address or every port is taken or unknown.
  // kInvalidArgument: bad options. Any thread but the loop thread.
  static Result<std::unique_ptr<Server>> start(AsioLoop& loop, ServerOptions options, ServerHandler& handler);
  // Closes the port and all connections; no callback runs afterwards. Any thread.
  virtual ~Server() = default;

  virtual std::uint16_t port() const = 0;
  // Sends at most kMaxMessage bytes (frame.h) to a member of the current epoch, in order; drops them if the member is
  // gone. Loop thread.
  virtual void send(Rank to, ConstBytes message) = 0;
  // Sends a message for several ranks to one member, at most kMaxTree bytes. Loop thread.
  virtual void send_tree(Rank to, ConstBytes message) = 0;
  // Notifies the other members now that `rank`, which is about to leave, has left. on_left() follows when its
  // connection ends, with or without a leave; the rank cannot be lost any more. Loop thread.
  virtual void announce_leave(Rank rank) = 0;
  // Reports that the process of a rank has ended, and the reason ("killed by signal 9 (Killed)"), which becomes part of
  // the cause that all ranks see. In an elastic job `rank` is a slot. A rank that is still connected counts as lost.
  // Ranks that wait for this rank to join get an error at once. A new join of that rank revokes the report. Loop
  // thread.
  virtual void report_exit(Rank rank, const std::string& what) = 0;
  // ---- elastic jobs only; loop thread ----
  // Forms an epoch of peers that wait for it, indexed by rank, and tells each of them, with the notice of its rank.
  // Requires that no epoch runs.
  virtual Membership form(Epoch epoch, const std::vector<PeerId>& peers,
                          const std::vector<std::vector<std::byte>>& notices) = 0;
  // Sends a notice of at most kMaxMessage bytes to a member, in order; drops it for others.
  virtual void notify(PeerId peer, ConstBytes notice) = 0;
  // Ends the epoch, if one runs: its members get on_lost(`lost`, `why`), and nothing more until the next epoch.
  virtual void end_epoch(Rank lost, const Status& why) = 0;
  // Ends the connection of a peer that waits for an epoch, or gives another one up. on_gone() is not called.
  virtual void dismiss(PeerId peer, const Status& why) = 0;
  // ----
  // Returns the clock of a member minus the clock of the server, estimated from heartbeats. Loop thread.
  virtual Duration clock_offset(Rank rank) const = 0;
  // Returns the number of refused connections; for tests and --verbose. Any thread.
  virtual std::uint64_t strangers() const = 0;
};

}  // namespace sirtaki::rendezvous
