// verdict(): decides which steps count after the end of an epoch, from the reports of its members. Called by Roster.
// Pure.
//
// A step counts on a rank once the commit gate of the step has answered. Every rank enters the gate only when it holds
// all results of the step, so one rank that has passed the gate proves that all ranks hold them. After a loss each
// member freezes and reports its position. If some member has passed a step, all survivors commit the step; otherwise
// it is void on all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::control {

enum class StepState : std::uint8_t {
  kIdle = 0,      // the step has not begun
  kWorking = 1,   // some result of the step is missing
  kComplete = 2,  // all results of the step are in the memory of the program
  kPassed = 3,    // the gate of the step has answered: all ranks hold all results
};

// The position of a rank in a stream. A stream that the rank has closed is listed, too, with its last position.
struct StreamReport {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;  // counted from the beginning of the stream over all attempts and epochs
  StepState state = StepState::kIdle;
  bool operator==(const StreamReport&) const = default;
};

// On every survivor, the steps below `committed` count and the step `committed` is void.
struct StreamVerdict {
  StreamId stream;
  std::uint64_t committed = 0;
  bool operator==(const StreamVerdict&) const = default;
};

using StreamReports = std::vector<StreamReport>;
using StreamVerdicts = std::vector<StreamVerdict>;

struct EpochVerdict {
  StreamVerdicts streams;  // sorted by stream
  // Ranks that lack results of a step that another rank has passed: a broken invariant. Their state is worthless.
  std::vector<Rank> broken;
};

// Returns the verdict over the reports of an epoch, one entry a rank; nullopt: the rank is lost and has not reported.
EpochVerdict verdict(std::span<const std::optional<StreamReports>> reports);

}  // namespace sirtaki::control
