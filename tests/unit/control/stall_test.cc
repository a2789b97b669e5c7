#include "runtime/control/stall.h"

#include <gtest/gtest.h>

namespace sirtaki::control {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

Waiting waiting_for(const std::string& name) {
  return {true, false, 7, {{WaitKind::kOp, name, 0, 1, "allreduce"}}};
}

TEST(StallInspector, DoesNotCountTimeForWhichTheJobStoodStill) {
  StallInspector stall(2, {});
  TimePoint now{};
  stall.on_report(RankSet::of(0), waiting_for("a"), now);
  stall.on_report(RankSet::of(1), waiting_for("b"), now);
  stall.inspect(now);
  now = *stall.next_tick() + minutes(90);  // stopped here, and continued
  EXPECT_TRUE(stall.inspect(now).verdicts.empty());
  now += minutes(60);  // and again, with the first word from a rank
  stall.on_report(RankSet::of(0), waiting_for("a"), now);
  for (int i = 0; i < 3; ++i) {
    for (const auto& verdict : stall.inspect(now).verdicts) {
      EXPECT_NE(verdict.status.code(), Code::kTimeout) << verdict.status.to_string();
    }
    now = stall.next_tick().value_or(now + seconds(1));
  }
}

TEST(StallInspector, GivesUpALateOperationOnTime) {
  StallInspector stall(2, {seconds(1), seconds(60), minutes(3)});
  TimePoint now{};
  stall.on_report(RankSet::of(0), waiting_for("a"), now);
  bool given_up = false;
  while (!given_up && stall.next_tick() && now < TimePoint{} + minutes(10)) {
    now = *stall.next_tick();
    given_up = !stall.inspect(now).verdicts.empty();
  }
  EXPECT_TRUE(given_up);
  EXPECT_LT(now, TimePoint{} + minutes(5));
}

}  // namespace
}  // namespace sirtaki::control
