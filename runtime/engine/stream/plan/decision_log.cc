#include "runtime/engine/stream/plan/decision_log.h"

#include <utility>

namespace sirtaki::engine {

void DecisionLog::add(const scheduler::DecisionRecord& record, std::string policy) {
  if (!entries_.empty() && !entries_.back().changes()) {
    entries_.pop_back();
  }
  entries_.push_back({record, std::move(policy)});
  if (entries_.size() > kMost) {
    entries_.pop_front();
  }
}

void DecisionLog::write(JsonWriter& json) const {
  json.begin_array();
  for (const auto& [record, policy] : entries_) {
    json.begin_object();
    json.key("step").value(record.step);
    json.key("reason").value(scheduler::reason_name(record.reason));
    json.key("plan").value(record.plan_version);
    json.key("next_plan").value(record.next_version);
    json.key("measured_us").value(record.measured_us);
    json.key("current_us").value(record.current_us);
    json.key("predicted_us").value(record.predicted_us);
    json.key("bound_us").value(record.bound_us);
    json.key("policy").value(policy);
    json.end_object();
  }
  json.end_array();
}

}  // namespace sirtaki::engine
