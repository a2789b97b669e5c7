// An elastic job in one process, with real threads and sockets: ranks are lost, and the survivors go on as fewer ranks
// over the same connections.
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <vector>

#include "runtime/base/version.h"
#include "runtime/control/elastic/messages.h"
#include "tests/scenarios/elastic/support.h"
#include "tests/world/seeds.h"

namespace sirtaki::engine {
namespace {

using namespace std::chrono_literals;

class LostRankTest : public testing::TestWithParam<Rank> {};

TEST_P(LostRankTest, TheOthersGoOnAsFewerRanks) {
  const Rank victim = GetParam();
  Hub hub(4, 2);
  std::vector<Rank> rest = {0, 1, 2, 3};
  std::erase(rest, victim);
  run(hub, [&](Process& process) {
    const Status opened = process.init();
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    expect_members(process, {0, 1, 2, 3});
    hub.all.arrive_and_wait();
    if (process.slot() == victim) {
      return process.die();
    }
    const Status lost = process.work();
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_EQ(lost.blame().rank, victim);
    EXPECT_TRUE(contains(lost, "rank " + std::to_string(victim) + " (host ")) << lost.text();
    EXPECT_TRUE(contains(lost, "; 3 ranks go on as epoch 2")) << lost.text();
    float total = 0;
    EXPECT_EQ(process.sum(total).to_string(), lost.to_string());
    const Status regrouped = process.regroup();
    ASSERT_TRUE(regrouped.ok()) << regrouped.to_string();
    expect_members(process, rest);
    process.shutdown();
  });
  const std::vector<std::string> events = hub.events(2);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].substr(0, 17), "over: shut down: ") << events[0];
  EXPECT_EQ(events[1], "slot " + std::to_string(victim) + " survived by 3 as epoch 2");
}

INSTANTIATE_TEST_SUITE_P(EachRank, LostRankTest, testing::Values(0, 2, 3));

// Where a rank is lost.
enum class Place { kBetweenSteps, kInItsStep, kTwoInTheirSteps };

class LostStepTest : public testing::TestWithParam<Place> {};

// Steps of the survivors end in the same way, whatever the loss meets: all count or none.
TEST_P(LostStepTest, SurvivorsCommitTheSameSteps) {
  constexpr int kSteps = 3;
  for (std::uint64_t round = 0; round < world::last_seed(20); ++round) {
    Hub hub(4, 1);
    std::mutex mutex;
    std::vector<int> committed;
    const auto note = [&](int steps) {
      const std::lock_guard lock(mutex);
      committed.push_back(steps);
    };
    run(hub, [&](Process& process) {
      ASSERT_EQ(process.init().to_string(), "ok");
      ASSERT_EQ(process.open_stream(0).to_string(), "ok");
      hub.all.arrive_and_wait();
      const bool victim = process.slot() == 1 || (process.slot() == 2 && GetParam() == Place::kTwoInTheirSteps);
      int steps = 0;
      Status status;
      while (status.ok()) {
        if (victim && steps == kSteps) {
          if (GetParam() != Place::kBetweenSteps) {
            process.submit();
          }
          return process.die();
        }
        status = process.step();
        steps += status.ok() ? 1 : 0;
      }
      EXPECT_EQ(status.code(), Code::kRanksChanged) << status.to_string();
      if (victim) {
        return process.die();  // the loss of the other victim has come first
      }
      ASSERT_EQ(process.regroup().to_string(), "ok");
      if (process.committed()) {
        EXPECT_EQ(process.gradient(), 15.0F);
        ++steps;
      }
      note(steps);
      ASSERT_EQ(process.open_stream(static_cast<std::uint64_t>(steps)).to_string(), "ok");
      EXPECT_EQ(process.step().to_string(), "ok");
      process.shutdown();
    });
    ASSERT_EQ(committed.size(), GetParam() == Place::kTwoInTheirSteps ? 2U : 3U);
    for (const int steps : committed) {
      EXPECT_EQ(steps, committed.front());
      EXPECT_GE(steps, kSteps - 1);  // a step that only the lost rank has passed is void
      EXPECT_LE(steps, GetParam() == Place::kBetweenSteps ? kSteps : kSteps + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachPlace, LostStepTest,
                         testing::Values(Place::kBetweenSteps, Place::kInItsStep, Place::kTwoInTheirSteps));

// A step counts on a rank whose program has not waited for it, because another survivor has passed it.
TEST(ElasticTest, AStepThatOneRankHasPassedCountsOnAll) {
  Hub hub(3, 1);
  std::latch passed(1);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    ASSERT_EQ(process.open_stream(0).to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.submit();
    } else {
      EXPECT_EQ(process.step().to_string(), "ok");
    }
    if (process.slot() == 0) {
      passed.count_down();
    }
    if (process.slot() == 2) {
      passed.wait();
      return process.die();
    }
    EXPECT_EQ(process.session().await_failure(20s).code(), Code::kRanksChanged);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    EXPECT_EQ(process.gradient(), 7.0F);  // of all three
    EXPECT_EQ(process.committed(), process.slot() == 1);
    process.shutdown();
  });
}

TEST(ElasticTest, LossesDuringARegroupAreLeftOutUntilOneRankIsLeft) {
  Hub hub(4, 1);
  std::latch both(2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    if (process.slot() == 3) {
      return process.die();  // while the others wait for it
    }
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 2});
    both.arrive_and_wait();
    if (process.slot() == 0) {
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(4).size(), 4U);
}

TEST(ElasticTest, TwoRanksLostAtOnceAreNamedByOneErrorAndLeftOut) {
  Hub hub(4, 2);
  std::mutex mutex;
  std::vector<std::string> errors;
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 0 || process.slot() == 2) {
      return process.die();
    }
    const Status lost = process.work();
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    {
      const std::lock_guard lock(mutex);
      errors.push_back(lost.to_string());
    }
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {1, 3});
    process.shutdown();
  });
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(ElasticTest, ARankLostBetweenItsSeatAndTheDataConnectionsIsLeftOut) {
  Hub hub(3, 2);
  run(hub, [&](Process& process) {
    if (process.slot() != 1) {
      ASSERT_EQ(process.init().to_string(), "ok");
      expect_members(process, {0, 2});
      return process.shutdown();
    }
    ASSERT_EQ(process.connect().to_string(), "ok");
    rendezvous::JoinRequest request;
    request.rank = 1;
    request.size = 3;
    request.version = std::string(version());
    request.agreed_options = agreed_options(*hub.config);
    request.data_endpoints = {"127.0.0.1:1"};
    ASSERT_TRUE(process.line().client().join(request).ok());
    process.die();
  });
  EXPECT_EQ(hub.events(2).size(), 2U);
}

TEST(ElasticTest, ARankThatHasToLeavePartsAtAChangeAndTheOthersGoOn) {
  Hub hub(3, 1);
  std::latch summed(3);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      ASSERT_EQ(process.session().leave_soon().to_string(), "ok");
    }
    const std::uint32_t change = process.await_change();
    expect_members(process, {0, 1, 2});  // the epoch goes on until they agree
    summed.arrive_and_wait();            // the first one that ends it must not end the sum of another
    const Status next = process.regroup_at(change);
    if (process.slot() == 1) {
      EXPECT_EQ(next.code(), Code::kShutdown);
      EXPECT_TRUE(contains(next, "rank 1 (host ") && contains(next, " has left in order")) << next.to_string();
      EXPECT_EQ(next.blame().rank, 1);
      return;
    }
    ASSERT_EQ(next.to_string(), "ok");
    expect_members(process, {0, 2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(2)[1], "slot 1 survived by 2 as epoch 2");
}

TEST(ElasticTest, TheJobEndsInOrderIfAllRanksHaveToLeave) {
  Hub hub(2, 1);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    ASSERT_EQ(process.session().leave_soon().to_string(), "ok");
    const std::uint32_t change = process.await_change();
    hub.all.arrive_and_wait();
    const Status next = process.regroup_at(change);
    EXPECT_EQ(next.code(), Code::kShutdown);
    EXPECT_EQ(next.blame().rank, process.slot());
  });
  const std::vector<std::string> events = hub.events(3);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0], "over: shut down: the job has come to its end: all members had to leave it");
  EXPECT_EQ(events[1], "slot 0 survived by 0 as epoch 0");
  EXPECT_EQ(events[2], "slot 1 survived by 0 as epoch 0");
}

TEST(ElasticTest, TooFewRanksEndTheJobWithTheLosses) {
  Hub hub(2, 2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 0) {
      return process.die();
    }
    const Status lost = process.work();
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_TRUE(contains(lost, "too few ranks: 1 of at least 2 (elastic.min)")) << lost.text();
    const Status regrouped = process.regroup();
    EXPECT_EQ(regrouped.code(), Code::kPeerLost) << regrouped.to_string();
    EXPECT_TRUE(contains(regrouped, "too few ranks: 1 of at least 2 (elastic.min); lost: rank 0 (host "))
        << regrouped.text();
  });
  ASSERT_EQ(hub.events(1).size(), 1U);
  EXPECT_EQ(hub.events(1)[0].substr(0, 28), "over: peer lost: too few ran");
}

TEST(ElasticTest, AProcessThatNeverComesIsLeftOut) {
  Hub hub(3, 2);
  run(hub, [&](Process& process) {
    if (process.slot() == 1) {
      return hub.report_exit(1, "exit code 1");
    }
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 2});
    process.shutdown();
  });
  ASSERT_EQ(hub.events(2).size(), 2U);
  EXPECT_EQ(hub.events(2)[1], "slot 1 survived by 2 as epoch 1");
}

// Slots 1 and 3 of four are on one host, and `fail` ends the process of slot 3: both are lost in one change.
void expect_one_loss_of_the_host(const std::function<void(Process&)>& fail) {
  Hub hub(4, 1);
  for (const Rank slot : {1, 3}) {
    hub.set_host(slot, "a");
  }
  hub.set_host(0, "b");
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 3) {
      fail(process);
      return process.die();
    }
    const Status ended = process.work();
    if (process.slot() == 1) {
      EXPECT_TRUE(contains(ended, "is given up with its host, on which another process has failed")) << ended.text();
      return process.die();
    }
    EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
    ASSERT_EQ(process.regroup().to_string(), "ok");
    EXPECT_EQ(process.session().membership().epoch, Epoch(2));
    expect_members(process, {0, 2});
    process.shutdown();
  });
  const std::vector<std::string> events = hub.events(3);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1], "slot 1 survived by 2 as epoch 2");
  EXPECT_EQ(events[2], "slot 3 survived by 2 as epoch 2");
}

TEST(ElasticTest, ALostRankTakesTheOthersOfItsHostAlongInOneChange) {
  expect_one_loss_of_the_host([](Process& /*dies*/) {});
}

TEST(ElasticTest, ARankThatTheHubGivesUpTakesTheOthersOfItsHostAlongToo) {
  expect_one_loss_of_the_host([](Process& process) {
    control::Regroup regroup;
    regroup.last = Epoch(7);  // the present one is the first
    rendezvous::JoinRequest request;
    request.rank = 3;
    request.size = 4;
    request.report = control::encode(control::RosterReport(regroup));
    process.session().drop();
    EXPECT_EQ(process.line().client().join(request).status().code(), Code::kCorrupt);
  });
}

TEST(ElasticTest, TheNextHostOfASlotIsNotThatOfTheProcessWhichIsLost) {
  Hub hub(3, 1);
  for (const Rank slot : {0, 1, 2}) {
    hub.set_host(slot, std::string(1, static_cast<char>('a' + slot)));
  }
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      hub.set_host(1, "c");  // the next process comes there, before the hub has noticed the end of this one
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(2).size(), 2U);
}

TEST(ElasticTest, AtTheEndALostRankLeavesTheOthersOfItsHostAlone) {
  Hub hub(3, 1);
  for (const Rank slot : {1, 2}) {
    hub.set_host(slot, "a");
  }
  std::latch left(1);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 0) {
      process.shutdown();
      return left.count_down();
    }
    left.wait();
    if (process.slot() == 1) {
      return process.die();
    }
    EXPECT_EQ(hub.events(2).size(), 2U);
    process.shutdown();
  });
  for (const std::string& event : hub.events(2)) {
    EXPECT_EQ(event.find("slot 2"), std::string::npos) << event;
  }
}

TEST(ElasticTest, AProcessThatNeverComesTakesTheOthersOfItsHostAlong) {
  Hub hub(4, 1);
  for (const Rank slot : {1, 2, 3}) {
    hub.set_host(slot, slot < 3 ? "a" : "b");
  }
  run(hub, [&](Process& process) {
    if (process.slot() == 1 || process.slot() == 2) {
      return process.slot() == 1 ? hub.report_exit(1, "exit code 1") : void();
    }
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 3});
    process.shutdown();
  });
  const std::vector<std::string> events = hub.events(3);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1], "slot 1 survived by 2 as epoch 1");
  EXPECT_EQ(events[2], "slot 2 survived by 2 as epoch 1");
}

TEST(ElasticTest, AStoppedRankThatWakesUpHasNoPlaceAnyMore) {
  Hub hub(3, 1, "1s");
  std::latch regrouped(2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.line().loop().post([&] { regrouped.wait(); });
      regrouped.wait();
      const Status given_up = process.session().await_failure(20s);
      EXPECT_EQ(given_up.code(), Code::kPeerLost) << given_up.to_string();
      const Status again = process.regroup();
      EXPECT_EQ(again.code(), Code::kPeerLost) << again.to_string();
      return;
    }
    const Status lost = process.session().await_failure(20s);
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_TRUE(contains(lost, "has been silent for")) << lost.text();
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 2});
    regrouped.count_down();
    process.shutdown();
  });
}

TEST(ElasticTest, ARankThatCannotContinueTheEpochStartsTheNextOneWithAll) {
  Hub hub(3, 2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    hub.all.arrive_and_wait();
    if (process.slot() != 1) {
      const Status ended = process.work();
      EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
      EXPECT_TRUE(contains(ended, "rank 1 cannot continue the epoch; 3 ranks go on as epoch 2")) << ended.text();
    }
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(1).size(), 1U);
}

TEST(ElasticTest, ARankThatComesToTheEndOfTheProgramEndsTheJobForThoseWhoRegroup) {
  Hub hub(3, 1);
  std::latch done(1);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    hub.all.arrive_and_wait();
    if (process.slot() == 0) {
      process.shutdown();
      return done.count_down();
    }
    done.wait();
    if (process.slot() == 1) {
      return process.die();
    }
    EXPECT_FALSE(process.work().ok());
    const Status ended = process.session().await_failure(20s);
    EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
    EXPECT_TRUE(contains(ended, "; the job has come to its end")) << ended.text();
    EXPECT_EQ(process.regroup().code(), Code::kShutdown);
  });
}

}  // namespace
}  // namespace sirtaki::engine
