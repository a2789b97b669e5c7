// StepRecorder: records the times of one rank (tensors ready, tensors needed, steps) and makes a StepProfile of them.
//
// Owned by PlanAgreement; loop thread. It reads no clock: callers pass times. A step lasts from the end of the previous
// step to its own end, so it contains the work of the program between the two. Ranks that wait end a step together,
// however far apart they begin it. Only steps whose result the program has received count.
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
  // Largest number of steps in a profile.
  static constexpr std::size_t kMaxSamples = 16;

  explicit StepRecorder(std::size_t tensors);

  void ready(int index, TimePoint at);
  void finished(TimePoint at);
  // Records that the program waited for the step from `waited_since` until `now` and receives its result.
  void notified(const StreamBoard& board, TimePoint waited_since, TimePoint now);
  // Discards all measurements, because another plan is in force since the end of the last step.
  void forget();
  // The same, and the end of the last step is not the begin of the next one.
  void interrupted();

  // Returns means over the steps since the last call, without those that lasted more than twice the median, before
  // which the program did other work. The link is not set.
  scheduler::StepProfile take();

 private:
  void begin(TimePoint at);

  const std::size_t tensors_;
  scheduler::StepProfile current_;
  TimePoint first_ready_;
  TimePoint finished_;
  bool open_ = false;                       // some tensor of the step was ready
  std::optional<TimePoint> last_notified_;  // end of the step before, unless this step did not begin there
  std::deque<scheduler::StepProfile> samples_;
};

}  // namespace sirtaki::engine
