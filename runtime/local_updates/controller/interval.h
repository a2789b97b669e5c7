// Interval: number of local steps between merges, delay of a merge, mode, and the reason.
//
// The engine acts by the interval; logs, traces and statistics show it. Equal on all ranks. Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/local_updates/controller/mode.h"

namespace sirtaki::local_updates {

// Limit of the intervals of all policies.
inline constexpr std::int64_t kLongestInterval = 4096;

// The reason for an interval or mode.
enum class Reason : std::uint8_t {
  kStart,           // nothing decided yet
  kWarmUp,          // first steps of the training, or the learning rate still rises
  kFastLink,        // synchronous steps wait too little for local ones to gain time
  kHighRate,        // local steps would cost too much loss at the present learning rate, which does not rest
  kTrial,           // a trial of synchronous steps, to measure their waits
  kFixed,           // the requested number; 1 is the synchronous path
  kStatistics,      // bound of the policy, by learning rate, loss or divergence
  kShortest,        // the link needs no longer interval
  kLink,            // bound of the link, which keeps it from being overloaded
  kLinkAtMost,      // the link needs more than the longest interval allowed: steps will wait
  kNoLoss,          // the policy needs a loss and a learning rate above 0, and keeps the interval
  kAtMost,          // limited by the longest interval allowed
  kGrowing,         // limited to twice the previous interval
  kCallable,        // function of the program
  kLastRound,       // remaining steps of the training; in Mode::kSync too few for local ones
  kGuardNonFinite,  // G1
  kGuardNorm,       // G2
  kGuardVariance,   // G3
  kGuardLoss,       // G4
  kGuardDigest,     // G5
  kGuardLate,       // G6
  kPause,           // synchronous steps after an alarm
  kAsked,           // the program asked for synchronous steps
  kDrain,           // the program asked for equal parameters
  kResumed,         // the interval before a drain or a change of members
  kMembers,         // members change
  kFailed,          // the job failed
};
std::string_view reason_name(Reason reason);

// Measures for a link that needs longer intervals than the statistics allow, in this order.
enum class Escalation : std::uint8_t {
  kNone,      // merges block, or nothing is sent
  kOverlap,   // merges come later and overlap with the next steps
  kCompress,  // differences have fewer bits
  kLonger,    // intervals exceed the bound of the statistics
  kStall,     // all of these, and steps still wait
};
std::string_view escalation_name(Escalation escalation);

struct Interval {
  std::int64_t steps = 1;  // H, between two merges of a fragment; 1 outside kLocal
  std::int64_t delay = 0;  // D, steps from a snapshot to its merge; below `steps`
  Mode mode = Mode::kJoining;
  Reason reason = Reason::kStart;
  Escalation escalation = Escalation::kNone;
  // Encoding of differences: 0 is float32, and higher ones have fewer bits (LinkOptions::bits_permille).
  std::int64_t encoding = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

// Returns "H 8, D 2, local: link, longer intervals", for a person.
std::string to_string(const Interval& interval);

}  // namespace sirtaki::local_updates
