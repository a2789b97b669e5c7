// StreamTrace: what happened to each partition of a stream's step, as spans of the trace: queued behind what, gathered,
// on the network, scattered, needed by the program.
//
// Loop thread. Owned by Stream. While tracing is off every call costs a branch. Spans begun before tracing was turned
// on are not recorded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/common/stream_board.h"
#include "runtime/engine/common/trace.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

class StreamTrace {
 public:
  // `trace` outlives it.
  StreamTrace(Trace& trace, std::string stream) : trace_(trace), stream_(std::move(stream)) {}

  // A step begins under this plan.
  void begin_step(std::shared_ptr<const scheduler::Plan> plan);
  // All tensors of the partition are there.
  void ready(int position);
  // Its turn has come and there is credit: it is gathered and encoded, then on the network, then decoded and scattered.
  void launched(int position);
  void packed(int position, std::int64_t bytes);
  void received(int position, std::int64_t bytes);
  void unpacked(int position, std::int64_t bytes);
  // The same of a compressed partition, which may be encoded and sent more than once.
  void encoded(int position, std::int64_t bytes);
  void decoded(int position, std::int64_t bytes);
  // The step is over: the program has waited for all of it since then, and for tensors as the board says.
  void end_step(TimePoint waited_since, const StreamBoard& board);

 private:
  struct Times {
    TimePoint ready;
    TimePoint stage;  // the stage it is in began
    TimePoint done;
  };

  Times& at(int position) { return times_[static_cast<std::size_t>(position)]; }
  // "optimizer.0: fc6.weight [65536] and 3 more"
  const std::string& label(int position);
  void next_stage(int position, Stage stage, std::int64_t bytes);

  Trace& trace_;
  const std::string stream_;
  std::shared_ptr<const scheduler::Plan> plan_;
  std::vector<std::string> labels_;  // by position; made when they are first used
  std::vector<Times> times_;
  int last_launched_ = -1;
  TimePoint last_launch_;
};

}  // namespace sirtaki::engine
