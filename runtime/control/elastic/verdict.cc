#include "runtime/control/elastic/verdict.h"

#include <algorithm>
#include <map>

namespace sirtaki::control {
namespace {

// The farthest position that some rank has committed in a stream.
struct Front {
  std::uint64_t committed = 0;
  std::optional<std::uint32_t> passed_in;  // attempt of a rank that has passed the last committed step
};

void advance(Front& front, const StreamReport& report) {
  const bool passed = report.state == StepState::kPassed;
  const std::uint64_t committed = report.step + (passed ? 1 : 0);
  if (committed > front.committed) {
    front = {committed, {}};
  }
  if (passed && committed == front.committed) {
    front.passed_in = report.attempt;
  }
}

bool lacks_results(const Front& front, const StreamReport& report) {
  if (report.step >= front.committed) {
    return false;
  }
  const bool holds = report.state == StepState::kComplete || report.state == StepState::kPassed;
  const bool same_attempt = !front.passed_in || *front.passed_in == report.attempt;
  return report.step + 1 < front.committed || !holds || !same_attempt;
}

}  // namespace

EpochVerdict verdict(std::span<const std::optional<StreamReports>> reports) {
  std::map<StreamId, Front> fronts;
  for (const auto& report : reports) {
    for (const StreamReport& stream : report.value_or(StreamReports())) {
      advance(fronts[stream.stream], stream);
    }
  }
  EpochVerdict result;
  for (const auto& [stream, front] : fronts) {
    result.streams.push_back({stream, front.committed});
  }
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const StreamReports report = reports[rank].value_or(StreamReports());
    if (std::ranges::any_of(report, [&](const StreamReport& s) { return lacks_results(fronts[s.stream], s); })) {
      result.broken.push_back(static_cast<Rank>(rank));
    }
  }
  return result;
}

}  // namespace sirtaki::control
