// Messages about the members of an elastic job in both directions, and the roster fed with every report that decodes.
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/control/elastic/messages.h"
#include "runtime/control/elastic/roster.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {

std::vector<Input> seeds() {
  using namespace control;
  const StreamReports streams = {{StreamId(1), 2, 70, StepState::kComplete}, {StreamId(4), 0, 3, StepState::kPassed}};
  const LostRank lost{1, {Code::kPeerLost, "killed", {1, ""}}};
  const std::vector<RosterReport> reports = {
      Hello{{3, 2}},   Regroup{Epoch(1), 4, true, true, {Code::kPeerLost, "cut", {1, ""}}, streams, {2}},
      Departure{true}, Admission{true},
      MustLeave{},
  };
  const std::vector<RosterNotice> notices = {
      EpochEnds{Epoch(1), lost},
      ChangeWanted{5},
      Announced{3},
      EpochFormed{Epoch(2), 5, true, 1, {{{0, 1}, 2, true}, {{3, 2}, -1, false}}, {{StreamId(1), 71}}},
      JobEnds{{Code::kShutdown, "the end"}},
  };
  // One message of each type: the goldens cover the whole format.
  SRT_CHECK(reports.size() == std::variant_size_v<RosterReport>);
  SRT_CHECK(notices.size() == std::variant_size_v<RosterNotice>);
  std::vector<Input> inputs;
  for (const RosterReport& report : reports) {
    inputs.push_back(input_from(encode(report)));
  }
  for (const RosterNotice& notice : notices) {
    inputs.push_back(input_from(encode(notice)));
  }
  return inputs;
}

// Feeds the report to a roster with a running epoch, and checks what the roster answers.
void feed_roster(const control::RosterReport& report) {
  using namespace control;
  const TimePoint now(std::chrono::seconds(1));
  RosterOptions options;
  options.start = options.max = 2;
  Roster roster(options);
  for (int slot = 0; slot < 2; ++slot) {
    const Connection connection(static_cast<std::uint64_t>(slot));
    roster.on_hello(connection, {slot, 1}, now);
    roster.on_regroup(connection, {}, now);
  }
  const Connection from(0);
  if (const auto* hello = std::get_if<Hello>(&report)) {
    roster.on_hello(Connection(2), hello->id, now);
  } else if (const auto* regroup = std::get_if<Regroup>(&report)) {
    roster.on_regroup(from, *regroup, now);
  } else if (const auto* admission = std::get_if<Admission>(&report)) {
    roster.on_admission(from, *admission, now);
  } else if (std::holds_alternative<MustLeave>(report)) {
    roster.on_leaving(from, now);
  } else {
    roster.on_departure(from, std::get<Departure>(report), now);
  }
  roster.on_tick(now + std::chrono::hours(1));
  for (const Roster::Action& action : roster.take_actions()) {
    if (const auto* send = std::get_if<Roster::Send>(&action)) {
      SRT_CHECK(decode_roster_notice(encode(send->notice)).ok());
    }
  }
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto notice = control::decode_roster_notice(bytes)) {
    SRT_CHECK(control::encode(*notice).size() == size);
  }
  if (const auto report = control::decode_roster_report(bytes)) {
    SRT_CHECK(control::encode(*report).size() == size);
    fuzz::feed_roster(*report);
  }
  return 0;
}
