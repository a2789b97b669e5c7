// StreamTrace: records the stages of each partition of a step as spans of the trace: queued and behind which partition,
// gathered, on the network, scattered, needed by the program.
//
// Owned by GradientStream; loop thread. While tracing is off every call costs a branch. Spans begun before tracing was
// turned on are not recorded.
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
  // `trace` must outlive it.
  StreamTrace(Trace& trace, std::string stream) : trace_(trace), stream_(std::move(stream)) {}

  // Begins a step under this plan.
  void begin_step(std::shared_ptr<const scheduler::Plan> plan);
  // Records that all tensors of the partition are ready.
  void ready(int position);
  // Records that its turn has come and there is credit: it is gathered and encoded, then on the network, then decoded
  // and scattered.
  void launched(int position);
  void packed(int position, std::int64_t bytes);
  void received(int position, std::int64_t bytes);
  void unpacked(int position, std::int64_t bytes);
  // The same for a compressed partition, which may be encoded and sent more than once.
  void encoded(int position, std::int64_t bytes);
  void decoded(int position, std::int64_t bytes);
  // Ends the step. The program has waited for all of it from `waited_since` on; `board` has its waits for tensors.
  void end_step(TimePoint waited_since, const StreamBoard& board);

 private:
  struct Times {
    TimePoint ready;
    TimePoint stage;  // begin of its current stage
    TimePoint done;
  };

  Times& at(int position) { return times_[static_cast<std::size_t>(position)]; }
  // Returns a label such as "optimizer.0: fc6.weight [65536] and 3 more".
  const std::string& label(int position);
  void next_stage(int position, Stage stage, std::int64_t bytes);

  Trace& trace_;
  const std::string stream_;
  std::shared_ptr<const scheduler::Plan> plan_;
  std::vector<std::string> labels_;  // index: position; made at the first use
  std::vector<Times> times_;
  int last_launched_ = -1;
  TimePoint last_launch_;
};

}  // namespace sirtaki::engine
