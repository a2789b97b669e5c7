// SimSession: one epoch of a process of a simulated elastic job: the real engine with its streams, operations by name
// and commit gate, over the real collectives and a link without sockets.
//
// Stands in for engine::Session: it has a loop of its own, to which calls of the program and messages of the control
// connection are posted; answers are posted to the loop of the program. Checks that every callback comes exactly once,
// and that nothing changes in the streams after drop() has read their positions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/telemetry/log.h"
#include "runtime/control/elastic/verdict.h"
#include "runtime/engine/engine.h"
#include "runtime/net/collectives/direct.h"
#include "runtime/net/link/inproc_link.h"
#include "tests/world/elastic/training.h"
#include "tests/world/sim_loop.h"
#include "tests/world/world.h"

namespace sirtaki::world {

// Gives the answer for which a program waits, or will wait, on the calling loop.
template <class T>
void give(typename Await<T>::Cell& cell, T value) {
  cell.value.emplace(std::move(value));
  if (cell.waiter) {
    cell.waiter.resume();
  }
}

class SimSession final : private engine::ControlLink {
 public:
  struct Deps {
    SimLoop& loop;                                     // loop of this session alone
    SimLoop& program;                                  // loop of the thread of the program
    std::function<void(std::vector<std::byte>)> send;  // sends to the coordinator
    std::function<void(const std::string&)> broken;    // an invariant
  };
  struct Place {
    Epoch epoch;
    Rank rank = -1;
    int size = 0;
    std::shared_ptr<net::InprocGroup> group;
    bool replan = true;  // streams measure, and change their plans
  };
  using Frozen = std::function<void(control::StreamReports reports, Status why)>;

  SimSession(Deps deps, Place place);
  ~SimSession() override;

  const Place& place() const { return place_; }
  bool idle() const { return engine_->idle() && net_->in_flight() == 0 && pending_ == 0; }
  std::string describe() const { return engine_->describe(); }
  StreamId stream(int number) const { return streams_.at(static_cast<std::size_t>(number)); }

  // ---- calls of the control connection ----
  void on_message(std::vector<std::byte> message);
  void on_left(Rank rank);
  void fail(Status cause);

  // ---- calls of the program ----
  Await<Status> open_stream(int number, engine::StreamSpec spec);
  // Submits all gradients, and finishes the step.
  void submit(int number, Training& training, const std::vector<int>& order);
  Await<Status> wait(int number);
  Await<Status> run(engine::OpSpec spec);
  // Starts an operation that nobody waits for.
  void start(engine::OpSpec spec);
  // Leaves the job in order; then calls `then`.
  void close(std::function<void()> then);
  // Ends the session without a word to the others, and passes the positions in its streams to `then` when all callbacks
  // have come. `memory` returns a digest of the memory that a frozen engine must not change.
  void drop(std::function<std::uint64_t()> memory, Frozen then);

 private:
  template <class T>
  using Answer = MoveFunction<void(T)>;

  void send(control::MemberMessage message) override;
  Duration cause_grace() const override;
  template <class T, class Start>
  Await<T> call(Start start);
  void submit_op(engine::OpSpec spec, Answer<Status> answer);
  template <class T>
  Answer<T> counted(std::function<void(T)> then);
  void drain(int turns, std::uint64_t memory, std::function<std::uint64_t()> now, control::StreamReports reports,
             Status why, Frozen then);

  Deps deps_;
  const Place place_;
  Stats stats_;
  Timeline timeline_;
  Logger log_;
  std::unique_ptr<net::InprocEndpoint> link_;
  std::unique_ptr<net::DirectCollectives> net_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<StreamId> streams_;
  int pending_ = 0;      // callbacks that have not come
  bool silent_ = false;  // nothing is sent to the coordinator any more
};

}  // namespace sirtaki::world
