// SimWorld: a whole job in one thread: n engines, the coordinator and the network between them, in virtual time.
//
// Everything but threads and sockets is the real code. At every step border of a stream all ranks must have the same
// plan. A seed fixes delays, the order of simultaneous events and what the scenario draws; a failing run prints it. A
// run in which nothing can happen any more while a scenario is unfinished is a deadlock and is reported with the state
// of every engine.
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
  Duration min_delay{};  // of a message, control or data; drawn for each
  Duration max_delay = std::chrono::microseconds(500);
  double bytes_per_second = 25e6;
  std::optional<AbstractCosts> abstract_net;  // collectives by formula, for many ranks; else the real ones
  ControlOptions control;                     // its size is `size`
  Duration limit = std::chrono::hours(2);     // virtual; a run beyond it has failed
  engine::EngineOptions engine;
  Recorder* recorder = nullptr;  // optional; digests the whole run
  // Makes one rank's options differ; empty: all have the same.
  std::function<void(Rank, engine::EngineOptions&)> per_rank;
};

class SimWorld {
 public:
  explicit SimWorld(SimOptions options);
  ~SimWorld();

  // Runs one scenario a rank to its end. Empty: all ended well; else what went wrong, with the seed.
  std::string run(const ScenarioFn& scenario);

  TimePoint now() const;
  std::uint64_t control_messages() const;  // without membership
  const SimControl& control() const;
  std::uint64_t data_operations() const;  // completed collectives; with an abstract net only
  const std::vector<std::string>& warnings() const;
  // Warnings and errors that the ranks themselves wrote.
  const std::vector<std::string>& rank_log() const;
  // Sum over the ranks of a counter of their statistics.
  std::uint64_t counter(std::string_view name);
  // Invariants at the end of a run: nothing in flight, credit full. Empty: they hold.
  std::string check_quiet() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sirtaki::world
