// SimWorld: a whole job in one thread: n engines, the coordinator and the network between them, in virtual time.
//
// All code but threads and sockets is the real code. At every step border of a stream all ranks must have the same
// plan. A seed fixes delays, the order of simultaneous events and the draws of the scenario; a failing run prints it. A
// run without a pending event but with an unfinished scenario is a deadlock; it is reported with the state of every
// engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/world/abstract_net.h"
#include "tests/world/recorder.h"
#include "tests/world/sim_control.h"
#include "tests/world/sim_loop.h"
#include "tests/world/world.h"

namespace sirtaki::world {

struct SimOptions {
  std::uint64_t seed = 1;
  int size = 2;
  Duration min_delay{};  // travel time of a message, control or data; drawn for each message
  Duration max_delay = std::chrono::microseconds(500);
  double bytes_per_second = 25e6;
  std::optional<AbstractCosts> abstract_net;  // collectives by formula, for many ranks; nullopt: the real ones
  ControlOptions control;                     // its size must equal `size`
  Duration limit = std::chrono::hours(2);     // virtual time; a longer run has failed
  engine::EngineOptions engine;
  Recorder* recorder = nullptr;          // optional; records the whole run
  LogLevel log_level = LogLevel::kWarn;  // least level of rank_log()
  // Changes the options of one rank; empty: all ranks have the same.
  std::function<void(Rank, engine::EngineOptions&)> per_rank;
};

class SimWorld {
 public:
  explicit SimWorld(SimOptions options);
  ~SimWorld();

  // Runs one scenario on each rank to its end. Returns an error text with the seed; empty on success.
  std::string run(const ScenarioFn& scenario);

  TimePoint now() const;
  std::uint64_t control_messages() const;  // without membership messages
  const SimControl& control() const;
  std::uint64_t data_operations() const;  // completed collectives; abstract net only
  const std::vector<std::string>& warnings() const;
  // Returns the lines that the ranks logged, warnings and errors by default.
  const std::vector<std::string>& rank_log() const;
  // Returns the sum over the ranks of a counter of their statistics.
  std::uint64_t counter(std::string_view name);
  // Checks the invariants at the end of a run: no operation in flight, all credit returned. Returns a violation; empty:
  // none.
  std::string check_quiet() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sirtaki::world
