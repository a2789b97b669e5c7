// DecisionLog: recent decisions of the planner and the policy of a stream, and their inputs, for stats().
//
// Owned by PlanAgreement; loop thread. Keeps the last kMost changes of the plan, and the last decision even if it
// changed nothing. Not for: a complete record (scheduler::Replanner has one; the log and a trace get every entry as
// text).
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "runtime/base/json.h"
#include "scheduler/replanner.h"

namespace sirtaki::engine {

class DecisionLog {
 public:
  static constexpr std::size_t kMost = 16;

  // `policy`: inputs and reason of the policy, in words; empty if no policy changes wire formats.
  void add(const scheduler::DecisionRecord& record, std::string policy);

  // Writes an array, the oldest entry first; docs/scheduling.md lists the keys.
  void write(JsonWriter& json) const;

 private:
  struct Entry {
    scheduler::DecisionRecord record;
    std::string policy;
    bool changes() const { return record.next_version != record.plan_version; }
  };
  std::deque<Entry> entries_;
};

}  // namespace sirtaki::engine
