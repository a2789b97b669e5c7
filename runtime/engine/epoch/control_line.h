// ControlLine: the connection of a process to the coordinator, with the control thread that serves it. A ControlPlane
// uses it for one epoch; in an elastic job the next one takes it over, so that heartbeats go on between two epochs.
//
// Owned by ControlPlane, in elastic jobs together with the owner of the sessions. Threads: attach(), detach(), cut()
// and join() any but the control loop; freeze(), set_unreachable(), take_committed(), admit() and agree() that of
// join(); see Client for the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/control/elastic/verdict.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/link/asio_loop.h"

namespace sirtaki::engine {

// The end that a rank brings about which cannot connect to the others.
enum class Unable : std::uint8_t {
  kEndsJob,    // all ranks fail with the same cause
  kEndsRank,   // the others go on without this rank, which has nothing that they lack
  kEndsEpoch,  // all go on in the next one
};

class ControlLine final : private rendezvous::ClientHandler {
 public:
  // Connects to the coordinator at `server`. Returns kAborted once `interrupted` (may be empty) returns true; joining
  // polls it, too.
  static Result<std::shared_ptr<ControlLine>> connect(const Config& config, const std::string& server,
                                                      const rendezvous::Secret& secret,
                                                      const std::function<bool()>& interrupted);
  ~ControlLine() override = default;

  // Passes events to `handler` until detach(). Events without a handler are dropped; a connection that has ended is
  // reported by the next join.
  void attach(rendezvous::ClientHandler* handler);
  // No event runs in `handler` after this, and events of its epoch reach no later handler.
  void detach(rendezvous::ClientHandler* handler);
  // Joins the next epoch; see Client::join(). In an elastic job it reports the positions given to freeze(), and learns
  // which steps count.
  Result<rendezvous::Membership> join(rendezvous::JoinRequest request);
  // Sets the positions of this rank in the streams of an epoch that has ended, and its cause, for the next join(). The
  // cause is ok if the program has given the epoch up.
  void freeze(control::StreamReports reports, const Status& why) {
    frozen_ = std::move(reports);
    why_ = why;
  }
  // Sets the ranks to which this one could not connect in the epoch that join() has returned, for the next join().
  void set_unreachable(const std::vector<Rank>& ranks) { unreachable_ = ranks; }
  // Says whether the program of this process has the state of the job and gives it to ranks that join.
  void admit(bool admits);
  // Asks the coordinator to end the epoch for this rank, which has to leave the job. No effect between two epochs. Any
  // thread, also while join() runs.
  void leave_soon();
  // Returns whether ranks may join the job after its start.
  bool grows() const { return grows_; }
  // Returns whether the program has the state of the job: from the start, or since admit(true).
  bool has_state() const { return has_state_; }
  // Returns the end that this rank brings about if it cannot connect to the others of the epoch that join() has
  // returned. In the first epoch a job has nothing to lose.
  Unable unable() const;
  // Returns the number of a change that the present epoch should end for; 0: none. Any thread.
  std::uint32_t wanted() const;
  // Returns the number of processes that are on their way into the job or out of it, and will bring changes about. Any
  // thread.
  std::uint32_t announced() const { return announced_; }
  // Makes the next join() say that all ranks have agreed to end the epoch for this change.
  void agree(std::uint32_t change) { agreed_ = change; }
  // Ends the connection without a good-bye: the others take this rank for lost.
  void cut() { client_->close(); }
  // Returns the streams whose step in progress counts, by the verdict that join() has brought, and forgets them.
  std::set<StreamId> take_committed() { return std::exchange(committed_, {}); }
  rendezvous::AsioLoop& loop() { return loop_; }
  rendezvous::Client& client() { return *client_; }
  const rendezvous::ClientOptions& options() const { return options_; }

 private:
  ControlLine() = default;

  void on_message(ConstBytes message) override;
  void on_tree(ConstBytes message) override;
  void on_notice(ConstBytes notice) override;
  void on_lost(Rank rank, const Status& cause) override;
  void on_left(Rank rank) override;
  void on_disconnected(const Status& cause) override;

  rendezvous::ClientOptions options_;
  bool elastic_ = false;
  Epoch last_;  // the epoch that join() has returned
  bool has_state_ = false;
  bool admits_ = false;
  bool grows_ = false;
  std::uint32_t agreed_ = 0;
  std::atomic<std::uint32_t> wanted_{0};   // the highest number of a change
  std::atomic<std::uint32_t> settled_{0};  // the number with which the present epoch has begun
  std::atomic<std::uint32_t> announced_{0};
  control::StreamReports frozen_;
  Status why_;
  std::vector<Rank> unreachable_;
  std::set<StreamId> committed_;
  rendezvous::ClientHandler* handler_ = nullptr;  // used on the control loop
  rendezvous::AsioLoop loop_{"srt-control"};
  std::unique_ptr<rendezvous::Client> client_;
};

}  // namespace sirtaki::engine
