// StepRecorder: when one rank's tensors were ready and needed, and how long its steps took; makes a StepProfile of it.
//
// Owned by PlanAgreement; used by the loop's thread. A step lasts from the end of the one before to its own, so what
// the program does between is part of it: ranks that wait end a step together, however far apart they begin it. Only
// steps that were told to the program count. No clock: times are given.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/engine/common/stream_board.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::engine {

class StepRecorder {
 public:
  // Steps a profile looks back on at most.
  static constexpr std::size_t kMaxSamples = 16;

  explicit StepRecorder(std::size_t tensors);

  void ready(int index, TimePoint at);
  void finished(TimePoint at);
  // The program waited for the step from `waited_since` until `now` and is told that it is done.
  void told(const StreamBoard& board, TimePoint waited_since, TimePoint now);
  // Another plan is in force, since the end of the step told last: what was measured says nothing of the steps to come.
  void forget();
  // Nor does the end of the last step say when the next one begins.
  void interrupted();

  // Means over the steps since the last call, without those that lasted more than twice the median (the program did
  // something else before). The link is not set.
  scheduler::StepProfile take();

 private:
  void begin(TimePoint at);

  const std::size_t tensors_;
  scheduler::StepProfile current_;
  TimePoint first_ready_;
  TimePoint finished_;
  bool open_ = false;                   // some tensor of the step was ready
  std::optional<TimePoint> last_told_;  // the step before, unless that says nothing of this one
  std::deque<scheduler::StepProfile> samples_;
};

}  // namespace sirtaki::engine
