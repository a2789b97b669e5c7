// Hierarchy of collectives for several hosts with several ranks: traffic between hosts, and ends after a lost rank.
#include "runtime/net/collectives/hierarchy.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "scheduler/plan/step_model.h"
#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

Hosts two_of_two() {
  return Hosts({{0, 2}, {1, 3}});
}

struct Crossing {
  Hosts hosts;
  std::array<std::size_t, 3> bytes{};  // bytes sent by each host
  std::array<std::size_t, 6> of_rank{};
};

WorldOptions counting(Crossing& crossing) {
  WorldOptions options;
  options.direct.hosts = crossing.hosts;
  options.local.fate = [&crossing](Rank from, const Envelope& envelope, std::size_t bytes) {
    if (crossing.hosts.host_of(from) != crossing.hosts.host_of(envelope.peer)) {
      crossing.bytes[static_cast<std::size_t>(crossing.hosts.host_of(from))] += bytes;
      crossing.of_rank[static_cast<std::size_t>(from)] += bytes;
    }
    return MessageFate::kDeliver;
  };
  return options;
}

std::vector<CollectiveArgs> allreduce_of(std::vector<std::vector<float>>& values) {
  std::vector<CollectiveArgs> args(values.size());
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    args[rank].tag = OpTag(1);
    args[rank].in = std::as_bytes(std::span(values[rank]));
    args[rank].out = std::as_writable_bytes(std::span(values[rank]));
  }
  return args;
}

TEST(Hosts, EveryShareHasAnOwnerOnEachHostAndEveryRankNeighbouringShares) {
  const Hosts hosts({{0, 3, 4}, {1, 2}, {5}});
  EXPECT_EQ(hosts.shares(), 3);
  EXPECT_EQ(hosts.owners(0), (std::vector<Rank>{0, 1, 5}));
  EXPECT_EQ(hosts.owners(1), (std::vector<Rank>{3, 1, 5}));
  EXPECT_EQ(hosts.owners(2), (std::vector<Rank>{4, 2, 5}));
  EXPECT_EQ(hosts.host_of(2), 1);
}

TEST(Hierarchy, GroupsKnowWhichRanksOfTheJobTheyAre) {
  WorldOptions options;
  options.direct.hosts = two_of_two();
  const auto world = make_local_world(4, options);
  const HostGroups* groups = world->at(3).host_groups();
  ASSERT_NE(groups, nullptr);
  EXPECT_EQ(groups->host, 1);
  EXPECT_EQ(groups->here->job_rank(0), 1);
  EXPECT_EQ(groups->here->rank(), 1);
  ASSERT_EQ(groups->own.size(), 1U);
  EXPECT_EQ(groups->own.front().number, 1);
  EXPECT_EQ(groups->own.front().owners->size(), 2);
  EXPECT_EQ(groups->own.front().owners->rank(), 1);
  EXPECT_EQ(groups->own.front().owners->job_rank(0), 2);
  options.direct.hosts = Hosts();
  EXPECT_EQ(make_local_world(4, options)->at(0).host_groups(), nullptr);
}

TEST(Hosts, OnlySeveralHostsWithSeveralRanksGainFromAHierarchy) {
  EXPECT_TRUE(HierarchicalCollectives::fits(two_of_two()));
  EXPECT_TRUE(HierarchicalCollectives::fits(Hosts({{0, 1, 2}, {3}})));
  EXPECT_FALSE(HierarchicalCollectives::fits(Hosts({{0, 1, 2, 3}})));
  EXPECT_FALSE(HierarchicalCollectives::fits(Hosts({{0}, {1}})));
  EXPECT_FALSE(HierarchicalCollectives::fits(Hosts()));
}

// An allreduce over two hosts sends its size in bytes once in each direction; every rank sends its part of them.
TEST(Hierarchy, BytesCrossANetworkCardOnceAndAllRanksOfAHostSendThem) {
  Crossing crossing;
  crossing.hosts = two_of_two();
  const auto world = make_local_world(4, counting(crossing));
  std::vector<std::vector<float>> values(4, std::vector<float>(1 << 18, 0.5F));
  for (const Status& status : run_on_all(*world, allreduce_of(values))) {
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  for (const auto& result : values) {
    EXPECT_EQ(result, std::vector<float>(result.size(), 2.0F));
  }
  const std::size_t whole = values[0].size() * sizeof(float);
  EXPECT_EQ(crossing.bytes[0], whole);
  EXPECT_EQ(crossing.bytes[1], whole);
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    EXPECT_EQ(crossing.of_rank[rank], whole / 2);
  }
}

TEST(Hierarchy, OwnersOfASmallShareFollowTheLimitOfTheCaller) {
  struct Case {
    std::size_t limit;
    bool once;  // shares go in one exchange
  };
  // Three hosts of two: a host sends 8 times the whole in one exchange of all ranks, twice in one of owners, 4/3 in two
  // steps. Owners have one exchange up to 10 times the limit.
  for (const Case& one : {Case{0, false}, Case{383, false}, Case{384, true}, Case{3839, true}}) {
    Crossing crossing;
    crossing.hosts = Hosts({{0, 1}, {2, 3}, {4, 5}});
    const auto world = make_local_world(6, counting(crossing));
    std::vector<std::vector<float>> values(6, std::vector<float>(960, 0.5F));
    auto args = allreduce_of(values);
    for (CollectiveArgs& each : args) {
      each.exchange_bytes = one.limit;
    }
    for (const Status& status : run_on_all(*world, std::move(args))) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    const std::size_t whole = values[0].size() * sizeof(float);
    EXPECT_EQ(crossing.bytes[0], one.once ? 2 * whole : 4 * whole / 3) << "limit " << one.limit;
  }
}

// Counts the bytes that leave the first host, which has the most ranks, and the latencies until all ranks have the sum.
TEST(Hierarchy, KnowsTheTrafficOfAnAllreduce) {
  constexpr Duration kLatency = std::chrono::milliseconds(1);
  for (const Hosts& hosts : {two_of_two(), Hosts({{0, 1}, {2, 3}, {4, 5}}), Hosts({{0, 1, 2}, {3, 4}, {5}})}) {
    const auto ranks = static_cast<std::size_t>(hosts.owners(0).size() == 2 ? 4 : 6);
    for (const std::size_t numbers : {1, 5, 11, 96, 960, 9600}) {
      for (const std::size_t limit : {std::size_t{0}, std::size_t{384}, std::numeric_limits<std::size_t>::max()}) {
        Crossing crossing;
        crossing.hosts = hosts;
        WorldOptions options = counting(crossing);
        options.local.delay = [&](Rank from, Rank to, std::size_t) {
          return hosts.host_of(from) == hosts.host_of(to) ? Duration(0) : kLatency;
        };
        const auto world = make_local_world(static_cast<int>(ranks), options);
        std::vector<std::vector<float>> values(ranks, std::vector<float>(numbers, 0.5F));
        auto args = allreduce_of(values);
        for (CollectiveArgs& each : args) {
          each.exchange_bytes = limit;
        }
        const Traffic traffic = world->at(0).traffic(args[0]);
        const TimePoint began = world->link(0).loop().now();
        ASSERT_EQ(run_on_all(*world, std::move(args)).size(), ranks);
        const std::string what = std::to_string(hosts.count()) + " hosts, the first with " +
                                 std::to_string(hosts.ranks()[0].size()) + " ranks, " + std::to_string(numbers) +
                                 " numbers, limit " + std::to_string(limit);
        EXPECT_EQ(world->link(0).loop().now() - began, traffic.exchanges * kLatency) << what;
        // Blocks differ by one number.
        const double rounding = traffic.exchanges == 1 ? 0 : 2.0 * static_cast<double>(ranks * sizeof(float));
        EXPECT_NEAR(static_cast<double>(crossing.bytes[0]), traffic.bytes, rounding) << what;
      }
    }
  }
}

// Limits as of plans; 32 KiB is that of the options.
TEST(Hierarchy, HasTheExchangesAndBytesThatTheModelOfAStepCounts) {
  for (const Hosts& hosts : {two_of_two(), Hosts({{0, 1}, {2, 3}, {4, 5}}), Hosts({{0}, {1}, {2}})}) {
    WorldOptions world_options;
    world_options.direct.hosts = hosts;
    const auto here = static_cast<int>(hosts.ranks()[0].size());
    const auto world = make_local_world(here * hosts.count(), world_options);
    scheduler::PlannerOptions options;
    options.ranks = hosts.count();
    options.ranks_per_host = here;
    options.exchange_bytes = static_cast<std::int64_t>(world_options.direct.exchange_bytes);
    scheduler::StepProfile profile;
    profile.latency_ns = 20'000'000;
    profile.bytes_per_second = 12'000'000;
    for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{384}, std::int64_t{1} << 18, scheduler::kAnySize}) {
      const scheduler::StepModel model(profile, options, limit);
      for (std::size_t bytes = 96; bytes < (1U << 22); bytes *= 2) {
        std::vector<std::byte> memory(bytes);
        CollectiveArgs args;
        args.exchange_bytes = static_cast<std::size_t>(limit);
        args.in = args.out = memory;
        const scheduler::Job job{static_cast<std::int64_t>(bytes)};
        const Traffic traffic = world->at(0).traffic(args);
        const std::string what = std::to_string(hosts.count()) + " hosts of " + std::to_string(here) + ", limit " +
                                 std::to_string(limit) + ", " + std::to_string(bytes) + " bytes";
        EXPECT_EQ(model.exchanges(job), traffic.exchanges) << what;
        // Blocks differ by one number.
        EXPECT_NEAR(static_cast<double>(model.occupancy(job)) * 12e6 / 1e9, traffic.bytes, 64) << what;
      }
    }
  }
}

// A rank is killed after each possible message; ranks that learn of the loss abort, like the engine, and all end.
TEST(Hierarchy, ADeathInAnyPhaseEndsAllOthers) {
  for (int last = 0; last < 60; ++last) {
    int sent = 0;
    bool died = false;
    WorldOptions options;
    options.direct.hosts = two_of_two();
    options.direct.segment_bytes = 16 * 1024;
    options.local.fate = [&](Rank from, const Envelope&, std::size_t) {
      if (from == 2 && ++sent > last) {
        died = true;
        return MessageFate::kKillSender;
      }
      return MessageFate::kDeliver;
    };
    const auto world = make_local_world(4, options);
    std::vector<std::vector<float>> values(4, std::vector<float>(1 << 15, 1.0F));
    auto args = allreduce_of(values);
    int ended = 0;
    int lost = 0;
    for (Rank rank = 0; rank < 4; ++rank) {
      world->on(rank, [&, rank] {
        world->at(rank).start(args[static_cast<std::size_t>(rank)], [&, rank](const Status& status) {
          ++ended;
          if (!status.ok()) {
            ++lost;
            for (Rank other = 0; other < 4; ++other) {
              world->on(other, [&world, other, status] { world->at(other).abort(status); });
            }
          }
        });
      });
    }
    ASSERT_TRUE(world->wait([&ended] { return ended == 4; })) << "after message " << last;
    EXPECT_EQ(lost > 0, died) << "after message " << last;
    if (!died) {
      return;
    }
  }
  FAIL() << "the last messages of an allreduce were never reached";
}

// All ranks cancel the tag in any phase; each operation ends exactly once, and the next allreduce is correct.
TEST(Hierarchy, CancelledInAnyPhaseItEndsOnceAndTheNextOneIsRight) {
  for (int moment = 0; moment < 200; ++moment) {
    int messages = 0;
    bool cancelled = false;
    std::function<void()> cancel_all;
    WorldOptions options;
    options.direct.hosts = two_of_two();
    options.direct.segment_bytes = 16 * 1024;
    options.local.fate = [&](Rank, const Envelope& envelope, std::size_t) {
      if (envelope.tag == OpTag(1) && ++messages == moment + 1) {
        cancel_all();
      }
      return MessageFate::kDeliver;
    };
    const auto world = make_local_world(4, options);
    cancel_all = [&] {
      cancelled = true;
      for (Rank rank = 0; rank < 4; ++rank) {
        world->on(rank, [&world, rank] { world->at(rank).cancel(OpTag(1), {Code::kAborted, "no more"}); });
      }
    };
    std::vector<std::vector<float>> values(4, std::vector<float>(1 << 15, 1.0F));
    ASSERT_EQ(run_on_all(*world, allreduce_of(values)).size(), 4U) << "at message " << moment;
    for (auto& value : values) {
      value.assign(value.size(), 2.0F);
    }
    auto again = allreduce_of(values);
    for (CollectiveArgs& args : again) {
      args.tag = OpTag(2);
    }
    for (const Status& status : run_on_all(*world, again)) {
      ASSERT_TRUE(status.ok()) << status.to_string() << " at message " << moment;
    }
    for (const auto& result : values) {
      ASSERT_EQ(result, std::vector<float>(result.size(), 8.0F)) << "at message " << moment;
    }
    if (!cancelled) {
      return;
    }
  }
  FAIL() << "the last messages of an allreduce were never reached";
}

}  // namespace
}  // namespace sirtaki::net::testing
