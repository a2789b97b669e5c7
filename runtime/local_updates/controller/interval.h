// Interval: how many steps ranks make between merges, how late a merge comes, in which mode, and why.
//
// For: the engine, which acts by it, and logs, traces and statistics, which show it. Equal on all ranks. Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/local_updates/controller/mode.h"

namespace sirtaki::local_updates {

// No policy's interval is longer.
inline constexpr std::int64_t kLongestInterval = 4096;

// What set the interval, or the mode.
enum class Reason : std::uint8_t {
  kStart,           // nothing decided yet
  kWarmUp,          // the first steps of the training, or the learning rate still rises
  kFastLink,        // synchronous steps wait too little to win anything
  kTrial,           // some synchronous steps, to see whether they still wait
  kFixed,           // the number that was asked for; 1 is the synchronous path
  kStatistics,      // the policy's bound, from learning rate, loss or divergence
  kShortest,        // the link needs no more
  kLink,            // what the link needs not to be busier than it should be
  kLinkAtMost,      // it needs more than the longest interval allowed: steps will wait
  kNoLoss,          // the policy needs one above 0 and a learning rate, and leaves the interval as it is
  kAtMost,          // wanted is more than the longest interval allowed
  kGrowing,         // wanted is more than twice the interval before
  kCallable,        // the program's function
  kLastRound,       // the steps that are left
  kGuardNonFinite,  // G1
  kGuardNorm,       // G2
  kGuardVariance,   // G3
  kGuardLoss,       // G4
  kGuardDigest,     // G5
  kGuardLate,       // G6
  kPause,           // synchronous steps after a guard's alarm
  kAsked,           // the program wants synchronous steps for now
  kDrain,           // the program asked for equal parameters
  kResumed,         // what there was before a drain or a change of members
  kMembers,         // they change
  kFailed,          // the job said so
};
std::string_view reason_name(Reason reason);

// What is done about a link that needs longer intervals than the statistics allow, in this order.
enum class Escalation : std::uint8_t {
  kNone,      // merges block, or nothing travels
  kOverlap,   // they come later, and travel behind the next steps
  kCompress,  // differences travel in fewer bits
  kLonger,    // intervals are longer than the statistics' bound
  kStall,     // and steps still wait
};
std::string_view escalation_name(Escalation escalation);

struct Interval {
  std::int64_t steps = 1;  // H, between two merges of a fragment; 1 outside kLocal
  std::int64_t delay = 0;  // D, steps from a snapshot to its merge; below `steps`
  Mode mode = Mode::kJoining;
  Reason reason = Reason::kStart;
  Escalation escalation = Escalation::kNone;
  bool compress = false;  // send differences by the lossy codec

  friend bool operator==(const Interval&, const Interval&) = default;
};

// "H 8, D 2, local: link, longer intervals", for a person.
std::string to_string(const Interval& interval);

}  // namespace sirtaki::local_updates
