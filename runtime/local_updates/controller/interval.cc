#include "runtime/local_updates/controller/interval.h"

namespace sirtaki::local_updates {

std::string_view reason_name(Reason reason) {
  switch (reason) {
    case Reason::kStart:
      return "start";
    case Reason::kWarmUp:
      return "warm-up";
    case Reason::kFastLink:
      return "fast link";
    case Reason::kHighRate:
      return "high learning rate";
    case Reason::kTrial:
      return "trial of synchronous steps";
    case Reason::kFixed:
      return "fixed";
    case Reason::kShortest:
      return "the shortest interval";
    case Reason::kStatistics:
      return "statistics";
    case Reason::kLink:
      return "link";
    case Reason::kLinkAtMost:
      return "link, at the longest interval";
    case Reason::kNoLoss:
      return "no loss to go by";
    case Reason::kAtMost:
      return "the longest interval";
    case Reason::kGrowing:
      return "growing";
    case Reason::kCallable:
      return "the program's function";
    case Reason::kLastRound:
      return "last round";
    case Reason::kGuardNonFinite:
      return "guard: not finite";
    case Reason::kGuardNorm:
      return "guard: norm";
    case Reason::kGuardVariance:
      return "guard: variance";
    case Reason::kGuardLoss:
      return "guard: loss";
    case Reason::kGuardDigest:
      return "guard: digest";
    case Reason::kGuardLate:
      return "guard: late";
    case Reason::kPause:
      return "pause after an alarm";
    case Reason::kAsked:
      return "asked for";
    case Reason::kDrain:
      return "drain";
    case Reason::kResumed:
      return "resumed";
    case Reason::kMembers:
      return "members change";
    case Reason::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string_view escalation_name(Escalation escalation) {
  switch (escalation) {
    case Escalation::kNone:
      return "none";
    case Escalation::kOverlap:
      return "overlap";
    case Escalation::kCompress:
      return "compress";
    case Escalation::kLonger:
      return "longer intervals";
    case Escalation::kStall:
      return "steps wait";
  }
  return "unknown";
}

std::string to_string(const Interval& interval) {
  return "H " + std::to_string(interval.steps) + ", D " + std::to_string(interval.delay) + ", " +
         std::string(mode_name(interval.mode)) + ": " + std::string(reason_name(interval.reason)) + ", " +
         std::string(escalation_name(interval.escalation));
}

}  // namespace sirtaki::local_updates
