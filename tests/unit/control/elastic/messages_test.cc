#include "runtime/control/elastic/messages.h"

#include <gtest/gtest.h>

namespace sirtaki::control {
namespace {

const StreamReports kReports = {{StreamId(1), 2, 70, StepState::kComplete}, {StreamId(4), 0, 3, StepState::kPassed}};

TEST(RosterMessages, ReportsSurviveTheWire) {
  const std::vector<RosterReport> all = {Hello{{3, 2}}, Regroup{Epoch(1), 4, true, true, {}, kReports, {2}},
                                         Departure{true}, Admission{true}, MustLeave{}};
  ASSERT_EQ(all.size(), std::variant_size_v<RosterReport>) << "a kind of message is not tested";
  for (const RosterReport& message : all) {
    const auto bytes = encode(message);
    const auto decoded = decode_roster_report(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), bytes);
  }
}

TEST(RosterMessages, NoticesSurviveTheWire) {
  const LostRank lost{1, {Code::kPeerLost, "killed", {1, ""}}};
  const StreamVerdicts verdict = {{StreamId(1), 71}};
  const std::vector<RosterNotice> all = {
      EpochEnds{Epoch(1), lost}, ChangeWanted{5}, Announced{3},
      EpochFormed{Epoch(2), 5, true, 1, {{{0, 1}, 2, true}, {{3, 2}, -1, false}}, verdict},
      JobEnds{{Code::kShutdown, "the end"}}};
  ASSERT_EQ(all.size(), std::variant_size_v<RosterNotice>) << "a kind of message is not tested";
  for (const RosterNotice& message : all) {
    const auto bytes = encode(message);
    const auto decoded = decode_roster_notice(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), bytes);
  }
}

TEST(RosterMessages, ARankOutsideOfItsEpochIsRejected) {
  const std::vector<Seat> seats = {{{0, 1}, -1, false}};
  EXPECT_FALSE(decode_roster_notice(encode(RosterNotice(EpochFormed{Epoch(1), 0, false, 1, seats, {}}))).ok());
  EXPECT_FALSE(decode_roster_notice(encode(RosterNotice(EpochFormed{Epoch(1), 0, false, -1, seats, {}}))).ok());
  EXPECT_FALSE(decode_roster_report(encode(RosterReport(Hello{{-1, 1}}))).ok());
  EXPECT_FALSE(decode_roster_report(encode(RosterReport(Regroup{Epoch(1), 0, true, true, {}, {}, {-1}}))).ok());
}

}  // namespace
}  // namespace sirtaki::control
