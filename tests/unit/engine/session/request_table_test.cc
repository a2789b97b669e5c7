#include "runtime/engine/session/request_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace sirtaki::engine {
namespace {

TEST(RequestTable, ANameInFlightIsRefusedAndNothingOfTheGroupIsTaken) {
  RequestTable table(3);
  const auto first = table.add({"a"});
  ASSERT_TRUE(first.ok());
  const auto again = table.add({"b", "a"});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kInvalidArgument);
  EXPECT_NE(again.status().text().find("'a'"), std::string_view::npos);
  EXPECT_NE(again.status().text().find("rank 3"), std::string_view::npos);
  EXPECT_TRUE(table.add({"b"}).ok());
  EXPECT_FALSE(table.add({"c", "c"}).ok());
}

TEST(RequestTable, ANameIsFreeAgainWhenItsOperationHasCompleted) {
  RequestTable table(3);
  const RequestId id = table.add({"a"})->front().id;
  table.complete(id, {}, {});
  EXPECT_TRUE(table.add({"a"}).ok());
}

TEST(RequestTable, UnnamedOperationsNeverCollide) {
  RequestTable table(3);
  EXPECT_TRUE(table.add({"", ""}).ok());
}

TEST(RequestTable, WatchedRequestsAreReportedOnce) {
  RequestTable table(3);
  const auto tickets = *table.add({"a", "b", "c"});
  table.watch(tickets[0].id);
  table.complete(tickets[1].id, {}, {});
  table.watch(tickets[1].id);
  table.complete(tickets[0].id, {}, {});
  const auto done = table.wait_watched(10, Duration(0));
  ASSERT_TRUE(done);
  EXPECT_EQ(done->size(), 2U);
  EXPECT_TRUE(table.wait_watched(10, Duration(0))->empty());
  table.close();
  EXPECT_FALSE(table.wait_watched(10, std::chrono::seconds(10)));
}

TEST(CallerRegistry, AThreadThatGivesWayIsBlockedWhateverOthersDo) {
  const TimePoint now{std::chrono::seconds(5)};
  CallerRegistry registry;
  { const CallerRegistry::Scope earlier(registry, now - std::chrono::seconds(2)); }
  Callers beside;
  Callers plain;
  std::thread([&] {
    registry.set_gives_way(true);
    {
      const CallerRegistry::Scope scope(registry, now);
      EXPECT_TRUE(scope.gives_way());
      beside = registry.look(std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()) +
                             std::chrono::hours(1));
    }
    registry.set_gives_way(false);
    const CallerRegistry::Scope scope(registry, now);
    plain =
        registry.look(std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()) + std::chrono::hours(1));
  }).join();
  EXPECT_TRUE(beside.gives_way);
  EXPECT_TRUE(beside.blocked);
  EXPECT_FALSE(plain.gives_way);
  EXPECT_FALSE(plain.blocked) << "the first thread does not wait, and may submit something";
}

TEST(RequestTable, AForgottenRequestKeepsItsMemoryUntilItIsOver) {
  RequestTable table(0);
  const auto tickets = *table.add({"a", "b"});
  const auto memory = std::make_shared<int>(7);
  table.forget(tickets[0].id, memory);
  EXPECT_EQ(memory.use_count(), 2);
  EXPECT_FALSE(table.add({"a"}).ok()) << "it is in flight";
  table.complete(tickets[0].id, {}, {});
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_EQ(table.find(tickets[0].id), nullptr);
  table.complete(tickets[1].id, {}, {});
  table.forget(tickets[1].id, memory);
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_EQ(table.find(tickets[1].id), nullptr);
}

TEST(RequestTable, WatchedRequestsAreReportedAlsoWhenTheyWereReleased) {
  RequestTable table(0);
  const auto tickets = table.add({"", ""}).value();
  table.watch(tickets[0].id);
  table.complete(tickets[0].id, {}, {});
  table.erase(tickets[0].id);
  EXPECT_EQ(table.wait_watched(10, Duration(0)), std::vector{tickets[0].id});
  table.complete(tickets[1].id, {}, {});
  table.erase(tickets[1].id);
  table.watch(tickets[1].id);
  EXPECT_EQ(table.wait_watched(10, Duration(0)), std::vector{tickets[1].id});
  EXPECT_TRUE(table.wait_watched(10, Duration(0))->empty());
}

TEST(RequestTable, ClosingCallsWhoWaitsForWhatNeverEnds) {
  RequestTable table(0);
  const auto tickets = table.add({"a", "b", "c"}).value();
  int never = 0;
  int over = 0;
  ASSERT_TRUE(table.on_done(tickets[0].id, [&] { ++never; }).ok());
  ASSERT_TRUE(table.on_done(tickets[1].id, [&] { ++over; }).ok());
  table.complete(tickets[1].id, {}, {});
  EXPECT_EQ(never, 0);
  EXPECT_EQ(over, 1);
  table.close();
  EXPECT_EQ(never, 1);
  EXPECT_EQ(over, 1) << "once";
  // A closed table runs later functions immediately and accepts no requests.
  ASSERT_TRUE(table.on_done(tickets[2].id, [&] { ++never; }).ok());
  EXPECT_EQ(never, 2);
  EXPECT_EQ(table.add({"d"}).status().code(), Code::kShutdown);
  table.close();
  EXPECT_EQ(never, 2);
}

TEST(Waiter, TimeoutLeavesTheRequestAlive) {
  Waiter waiter({}, [] {});
  Slot slot;
  EXPECT_FALSE(waiter.wait(slot, std::chrono::milliseconds(1)));
  slot.complete(Status(Code::kCorrupt, "bad"));
  EXPECT_EQ(waiter.wait(slot, Duration(-1))->code(), Code::kCorrupt);
}

TEST(Waiter, InterruptEndsTheWait) {
  Waiter waiter([] { return true; }, [] {});
  Slot slot;
  EXPECT_EQ(waiter.wait(slot, Duration(-1))->code(), Code::kAborted);
}

TEST(Waiter, AThreadThatWaitsIsSeenAsBlocked) {
  std::atomic<int> long_waits{0};
  Slot slot;
  Waiter waiter({}, [&] {
    ++long_waits;
    slot.complete({});
  });
  EXPECT_FALSE(waiter.callers().waiting);
  std::thread other([&] { EXPECT_TRUE(waiter.wait(slot, Duration(-1))->ok()); });
  while (!waiter.callers().blocked) {
    std::this_thread::yield();
  }
  other.join();
  EXPECT_EQ(long_waits, 1);
  EXPECT_FALSE(waiter.callers().waiting) << "the thread is gone";
}

// ---- Rest ----

TEST(Rest, LastsWhenAllLooksOfALongTimeSawNoProcessorInUse) {
  using std::chrono::milliseconds;
  const Duration look = milliseconds(250);
  Rest rest;
  TimePoint now(std::chrono::hours(1));
  Duration used = std::chrono::seconds(30);
  const auto looks = [&](int count, Duration computed) {
    bool lasts = false;
    for (int i = 0; i < count; ++i) {
      now += look;
      used += computed;
      lasts = rest.lasts(now, used);
      EXPECT_EQ(rest.lasts(now, used), lasts) << "a second look at the same time";
    }
    return lasts;
  };
  EXPECT_FALSE(looks(20, milliseconds(1)));
  EXPECT_TRUE(looks(1, milliseconds(1)));
  EXPECT_FALSE(looks(1, milliseconds(100))) << "it computes";
  EXPECT_FALSE(looks(19, milliseconds(1)));
  EXPECT_TRUE(looks(1, milliseconds(1)));
  now += 2 * Rest::kGap;
  EXPECT_FALSE(rest.lasts(now, used)) << "nobody has looked";
  EXPECT_TRUE(looks(20, milliseconds(1)));
}

}  // namespace
}  // namespace sirtaki::engine
