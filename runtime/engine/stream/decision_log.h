// DecisionLog: what a stream's planner and policy decided of late and from what, for stats().
//
// Owned by PlanAgreement; loop thread. Keeps every change of the plan up to a number, and of what changed nothing only
// the last word. Not for: a complete record (scheduler::Replanner has one, the log and a trace get every entry as
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

  // `policy`: its inputs and reason, for a person; empty where no policy changes how tensors travel.
  void add(const scheduler::DecisionRecord& record, std::string policy);

  // An array, the oldest first; entries have the keys that docs/scheduling.md lists.
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
