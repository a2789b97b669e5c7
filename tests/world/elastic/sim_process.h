// SimProcess: one process of a simulated elastic job: its control connection, its sessions and its program.
//
// The control connection follows rendezvous::Client and engine::ControlLine (which frames count in which state, the
// request for the next epoch, the verdict that comes with it), and open() follows DefaultSession: these three need
// threads and sockets, so their rules stand here once more. The program trains two streams until both have all their
// steps; after each step the ranks may agree on a change of the members, and a new rank gets the state by a broadcast.
//
// Like a real process it has three loops, for the control connection, the session and the program, which run in any
// order. Owned by SimJob.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control/elastic/messages.h"
#include "tests/world/elastic/sim_hub.h"
#include "tests/world/elastic/sim_session.h"
#include "tests/world/elastic/training.h"
#include "tests/world/world.h"

namespace sirtaki::world {

class SimJob;

class SimProcess final : private HubClient {
 public:
  // `number`: place in the order of all starts.
  SimProcess(SimJob& job, Rank slot, int number);
  ~SimProcess() override;

  void start();
  // Ends the process. Its last messages to other ranks are lost unless they have arrived. These see its connections end
  // after `cut`, and the hub notices after `notice`.
  void kill(Duration cut, Duration notice);
  // The hub gives the process up, which goes on until it learns that.
  void give_up();
  // The connection to the other process ends, and no other one comes about.
  void part_from(const SimProcess& other);
  // The process has to leave the job, and says so at its next commit.
  void must_leave() { told_ = true; }

  Rank slot() const { return slot_; }
  rendezvous::PeerId peer() const { return peer_; }
  bool dead() const { return dead_; }
  bool hit() const { return hit_; }    // a fault has hit it
  bool told() const { return told_; }  // it has to leave
  // Status with which the program has ended; nullopt: it has not.
  const std::optional<Status>& result() const { return result_; }
  // The program has ended, and so has the control connection.
  bool over() const { return dead_ || (result_ && (!result_->ok() || state_ == State::kOver)); }
  bool has_state() const { return has_state_; }
  bool trained() const;
  const Training& training(int stream) const { return trainings_.at(static_cast<std::size_t>(stream)); }
  bool owns(const SimLoop* loop) const;
  bool quiet() const { return session_ == nullptr || session_->idle(); }
  void rethrow() const { program_->rethrow(); }
  std::string name() const { return "process " + std::to_string(number_) + " (slot " + std::to_string(slot_) + ")"; }
  std::string describe() const;

 private:
  enum class State : std::uint8_t { kOpen, kJoining, kMember, kOver };  // state of the control connection

  // ---- control loop ----
  SimLoop& control_loop() override { return *control_; }
  void on_seat(Rank rank, const std::vector<std::byte>& notice, const rendezvous::Membership& membership) override;
  void on_rejected(const Status& why) override { end(why); }
  void on_lost(Rank rank, const Status& why) override;
  void on_left(Rank rank) override;
  void on_message(const std::vector<std::byte>& message) override;
  void on_notice(const std::vector<std::byte>& notice) override;
  void on_leave_ok() override { state_ = State::kOver; }
  void end(const Status& cause);
  void fail(const Status& cause);
  void send_join(std::vector<std::byte> report);

  // ---- program loop ----
  Await<Status> open(std::uint32_t change);
  void detach(std::uint32_t change);
  void join();
  void take_seat(const control::EpochFormed& formed);
  void settle(const control::StreamVerdicts& verdict);
  void start_session();
  void cannot_connect();
  void opened(const Status& status);
  Scenario program();
  Await<Status> share_state();
  void take_state();
  void submit();
  void commit(int stream, Epoch epoch);
  void admit();
  void say_leaving();
  engine::OpSpec broadcast(const std::string& name, std::vector<std::byte>& bytes) const;
  std::uint32_t wanted() const { return wanted_ > settled_ ? wanted_ : 0; }
  std::uint64_t memory() const;
  void finish(const Status& status);

  SimJob& job_;
  const Rank slot_;
  const int number_;
  std::unique_ptr<SimLoop> control_;
  std::unique_ptr<SimLoop> thread_;  // thread of the program
  bool dead_ = false;
  bool hit_ = false;
  bool told_ = false;
  std::optional<Scenario> program_;
  std::optional<Status> result_;

  rendezvous::PeerId peer_;
  State state_ = State::kOpen;
  Rank rank_ = -1;
  Status cause_;                               // cause of the end of the connection
  std::vector<std::vector<std::byte>> early_;  // messages before the session has begun
  std::uint32_t wanted_ = 0;                   // highest number of a change
  std::uint32_t settled_ = 0;                  // number with which the epoch has begun

  Epoch last_;
  bool has_state_ = false;
  bool admits_ = false;
  Epoch said_leaving_;      // epoch in which it has said that it has to leave
  bool newcomers_ = false;  // some member has no state yet
  std::uint32_t agreed_ = 0;
  control::StreamReports frozen_;
  std::vector<StreamId> frozen_streams_;  // ids of the session that has ended, by number
  Status why_;
  std::shared_ptr<Await<Status>::Cell> opening_;
  std::optional<SimSession::Place> seat_;  // between the seat and the session
  Status broken_;                          // ended the epoch between the seat and the session
  rendezvous::PeerId apart_;               // the process to which this one cannot connect; 0: none
  std::vector<Rank> apart_ranks_;          // its rank in the epoch, if it has one
  std::vector<Rank> unreachable_;          // for the next report

  std::vector<std::unique_ptr<SimLoop>> session_loops_;  // loops of all sessions; the last one is the present one
  std::unique_ptr<SimSession> session_;
  std::vector<Training> trainings_;
  std::vector<std::byte> state_bytes_;
  std::vector<std::byte> vote_;
  std::vector<float> metric_;  // values of steps with an even and an odd number
};

}  // namespace sirtaki::world
