// An elastic job in one process that grows: other processes come in the places of lost ones while the rest goes on.
#include <gtest/gtest.h>

#include <latch>
#include <vector>

#include "adapters/c/default_session.h"
#include "tests/scenarios/elastic/support.h"

namespace sirtaki::engine {
namespace {

// Joins the epoch of these members, and admits other processes from then on.
void join(Process& process, const std::vector<Rank>& members) {
  ASSERT_EQ(process.init().to_string(), "ok");
  ASSERT_TRUE(process.line().grows());
  process.line().admit(true);
  expect_members(process, members);
}

// Ends the epoch for a loss, and begins the next one.
void survive(Process& process) {
  EXPECT_EQ(process.work().code(), Code::kRanksChanged);
  ASSERT_EQ(process.regroup().to_string(), "ok");
}

// Rank 2 is lost, and another process comes in its place at a step that the others choose.
TEST(GrowingTest, AnotherProcessComesInThePlaceOfALostOneWithoutAnErrorOfTheOthers) {
  Hub hub(3, 1, "30s", 3);
  std::latch lost(2);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1, 2}));
    hub.all.arrive_and_wait();
    if (process.slot() == 2) {
      process.die();
      lost.wait();
      Process other(hub, 2);
      ASSERT_NO_FATAL_FAILURE(join(other, {0, 1, 2}));
      EXPECT_EQ(other.session().membership().epoch, Epoch(3));
      return other.shutdown();
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    lost.count_down();
    const std::uint32_t change = process.await_change();
    expect_members(process, {0, 1});  // the epoch goes on until they agree
    ASSERT_EQ(process.regroup_at(change).to_string(), "ok");
    EXPECT_EQ(process.line().wanted(), 0U);
    expect_members(process, {0, 1, 2});
    process.shutdown();
  });
  const std::vector<std::string> events = hub.events(3);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1], "slot 2 joined 3 as epoch 3");
  EXPECT_EQ(events[2], "slot 2 survived by 2 as epoch 2");
}

TEST(GrowingTest, ALossNextToAChangeIsOneEpoch) {
  Hub hub(3, 1, "30s", 3);
  std::latch lost(2);
  std::latch both(2);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1, 2}));
    hub.all.arrive_and_wait();
    if (process.slot() == 2) {
      process.die();
      lost.wait();
      Process other(hub, 2);
      ASSERT_NO_FATAL_FAILURE(join(other, {1, 2}));
      return other.shutdown();
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    lost.count_down();
    const std::uint32_t change = process.await_change();
    expect_members(process, {0, 1});
    both.arrive_and_wait();  // the loss must not end the sum of the other
    if (process.slot() == 0) {
      return process.die();
    }
    ASSERT_EQ(process.regroup_at(change).to_string(), "ok");
    expect_members(process, {1, 2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(4)[1], "slot 0 survived by 1 as epoch 3");
}

TEST(GrowingTest, TooFewRanksWaitUntilNoOtherProcessComes) {
  Hub hub(2, 2, "30s", 2);
  std::latch both(2);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1}));
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.die();
      hub.events(1);
      Process other(hub, 1);
      ASSERT_NO_FATAL_FAILURE(join(other, {0, 1}));
      both.arrive_and_wait();  // the loss must not end the sum of the other
      other.die();
      hub.events(3);
      return hub.give_up(1);
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    expect_members(process, {0, 1});
    both.arrive_and_wait();
    const Status ended = process.work();
    EXPECT_EQ(ended.code(), Code::kRanksChanged);
    EXPECT_TRUE(contains(ended, "; too few ranks: 1 of at least 2 (elastic.min); waiting 600 s for more"))
        << ended.text();
    const Status regrouped = process.regroup();
    EXPECT_TRUE(contains(regrouped, "too few ranks: 1 of at least 2")) << regrouped.to_string();
  });
  EXPECT_TRUE(hub.events(4)[0].starts_with("over: peer lost: too few ranks"));
}

// The others go on as they are, and another process comes after it.
TEST(GrowingTest, AProcessThatCannotConnectToTheOthersEndsAlone) {
  Hub hub(3, 1, "30s", 3);
  std::latch lost(2);
  std::latch alone(2);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1, 2}));
    hub.all.arrive_and_wait();
    if (process.slot() == 2) {
      process.die();
      lost.wait();
      Process unable(hub, 2);
      unable.be_unable(1);
      const Status refused = unable.init();
      EXPECT_FALSE(refused.ok());
      EXPECT_NE(refused.code(), Code::kRanksChanged) << refused.to_string();
      unable.die();
      alone.wait();
      Process other(hub, 2);
      ASSERT_NO_FATAL_FAILURE(join(other, {0, 1, 2}));
      return other.shutdown();
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    lost.count_down();
    ASSERT_EQ(process.regroup_at(process.await_change()).to_string(), "ok");
    expect_members(process, {0, 1});
    alone.count_down();
    ASSERT_EQ(process.regroup_at(process.await_change()).to_string(), "ok");
    expect_members(process, {0, 1, 2});
    process.shutdown();
  });
}

TEST(GrowingTest, ARankWithTheStateThatCannotConnectToTheOthersTriesAgainWithThem) {
  Hub hub(3, 1, "1s", 3);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1, 2}));
    hub.all.arrive_and_wait();
    if (process.slot() == 2) {
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    process.be_unable(process.slot() == 1 ? 1 : 0);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    EXPECT_EQ(process.session().membership().epoch, Epoch(3));
    expect_members(process, {0, 1});
    process.shutdown();
  });
}

TEST(GrowingTest, ARankThatCannotConnectTwiceIsGivenUp) {
  Hub hub(4, 1, "1s", 4);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1, 2, 3}));
    hub.all.arrive_and_wait();
    if (process.slot() == 3) {
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    process.be_unable(process.slot() == 0 ? 2 : 0);
    const Status next = process.regroup();
    if (process.slot() == 0) {
      EXPECT_EQ(next.code(), Code::kPeerLost);
      EXPECT_TRUE(contains(next, "rank 0 had no data connection with rank ")) << next.to_string();
      EXPECT_TRUE(contains(next, " in two epochs in a row")) << next.to_string();
      return;
    }
    ASSERT_EQ(next.to_string(), "ok");
    EXPECT_EQ(process.session().membership().epoch, Epoch(4));
    expect_members(process, {1, 2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(3)[1], "slot 0 survived by 2 as epoch 4");
}

// A rank that has got the state in a later epoch than the first one loses it no more than the others.
TEST(GrowingTest, ANewRankThatHasGotTheStateTriesAgainWithTheOthers) {
  Hub hub(3, 1, "1s", 3);
  std::latch lost(2);
  std::latch all(3);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1, 2}));
    hub.all.arrive_and_wait();
    if (process.slot() == 2) {
      process.die();
      lost.wait();
      Process other(hub, 2);
      ASSERT_NO_FATAL_FAILURE(join(other, {0, 1, 2}));
      EXPECT_EQ(hub.stages(3), (std::vector<std::string>{"slot 2 waits", "slot 2 joins", "slot 2 has the state"}));
      all.arrive_and_wait();
      EXPECT_EQ(other.work().code(), Code::kRanksChanged);
      other.be_unable(1);
      ASSERT_EQ(other.regroup().to_string(), "ok");
      EXPECT_EQ(other.session().membership().epoch, Epoch(5));
      expect_members(other, {1, 2});
      return other.shutdown();
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    lost.count_down();
    ASSERT_EQ(process.regroup_at(process.await_change()).to_string(), "ok");
    expect_members(process, {0, 1, 2});
    all.arrive_and_wait();
    if (process.slot() == 0) {
      return process.die();
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    expect_members(process, {1, 2});
    process.shutdown();
  });
}

// The others do not miss it, so only the owner of the hub can make room for another one.
TEST(GrowingTest, AProcessThatIsStoppedWhileItWaitsIsReported) {
  Hub hub(2, 1, "1s", 2);
  std::latch lost(1);
  std::latch gone(1);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1}));
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.die();
      lost.wait();
      Process stopped(hub, 1);
      EXPECT_EQ(stopped.connect().to_string(), "ok");
      const std::jthread waits([&] { EXPECT_FALSE(stopped.open().ok()); });
      EXPECT_EQ(hub.stages(1), std::vector<std::string>{"slot 1 waits"});
      stopped.line().loop().post([&] { gone.wait(); });
      const std::vector<std::string> stages = hub.stages(2);
      EXPECT_TRUE(stages.back().starts_with("slot 1 is lost: rank 1 (host ")) << stages.back();
      return gone.count_down();
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    lost.count_down();
    gone.wait();
    process.shutdown();
  });
}

// A result that the program has not released keeps the session, but not the connection that tells of a live rank.
TEST(GrowingTest, ANewRankThatShutsDownWithoutTheStateIsLostThoughItHoldsAResult) {
  Hub hub(2, 1, "30s", 2);
  std::latch lost(1);
  run(hub, [&](Process& process) {
    ASSERT_NO_FATAL_FAILURE(join(process, {0, 1}));
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.die();
      lost.wait();
      auto& session = adapters::DefaultSession::instance();
      const adapters::GivenJob job{1, 2, hub.address(), hub.secret.to_hex()};
      ASSERT_EQ(session.init({"elastic.min = 1\nelastic.silence = \"30s\"\n", {}, job}).to_string(), "ok");
      const auto held = session.active();
      ASSERT_EQ(session.shutdown().to_string(), "ok");
      EXPECT_EQ(hub.events(3).size(), 3U) << "the hub does not know that the rank is lost";
      return;
    }
    ASSERT_NO_FATAL_FAILURE(survive(process));
    lost.count_down();
    ASSERT_EQ(process.regroup_at(process.await_change()).to_string(), "ok");
    ASSERT_NO_FATAL_FAILURE(survive(process));
    expect_members(process, {0});
    process.shutdown();
  });
}

}  // namespace
}  // namespace sirtaki::engine
