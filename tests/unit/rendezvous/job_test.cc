// Tests of epochs, messages, leaves and losses, with several clients in one process.
#include <dirent.h>
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "tests/unit/rendezvous/world.h"

namespace sirtaki::rendezvous {
namespace {

using namespace std::chrono_literals;

int entries_of(const char* folder) {
  int count = 0;
  DIR* dir = ::opendir(folder);
  while (::readdir(dir) != nullptr) {
    ++count;
  }
  ::closedir(dir);
  return count;
}

void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

TEST(Job, EveryRankLearnsTheWholeMembership) {
  TestServer server(3);
  Clients clients;
  std::vector<JoinRequest> requests;
  for (int rank = 0; rank < 3; ++rank) {
    clients.push_back(std::make_unique<TestClient>());
    ASSERT_TRUE(clients.back()->connect(server).ok());
    EXPECT_EQ((*clients.back())->local_address(), "127.0.0.1");
    requests.push_back(join_request(rank, 3));
  }
  for (const auto& result : join_all(clients, requests)) {
    ASSERT_TRUE(result) << result.status().to_string();
    EXPECT_EQ(result->epoch, Epoch(1));
    ASSERT_EQ(result->size(), 3);
    for (int rank = 0; rank < 3; ++rank) {
      const Member& member = result->members[static_cast<std::size_t>(rank)];
      EXPECT_EQ(member.rank, rank);
      EXPECT_EQ(member.hostname, "node-" + std::to_string(rank));
      EXPECT_EQ(member.pid, 1000 + rank);
      EXPECT_EQ(member.data_endpoints, requests[static_cast<std::size_t>(rank)].data_endpoints);
    }
  }
  server.log.await("epoch 1 of 3");
}

TEST(Job, MessagesArriveInOrderBothWaysAndAreCounted) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  for (int i = 0; i < 200; ++i) {
    clients[1]->say("echo " + std::to_string(i));
  }
  clients[0]->say("all done");
  clients[1]->log.await("message echo 199");
  const auto lines = clients[1]->log.lines();
  int next = 0;
  for (const std::string& line : lines) {
    if (line.starts_with("message echo ")) {
      EXPECT_EQ(line, "message echo " + std::to_string(next++));
    }
  }
  EXPECT_EQ(next, 200);
  clients[0]->log.await("message all done");
  clients[1]->log.await("message all done");
  EXPECT_EQ((*clients[1])->messages_sent(), 200u);
}

TEST(Job, ALargeMessageGoesThrough) {
  TestServer server(1);
  Clients clients = formed(server, 1);
  const std::string big = "echo " + std::string(5 << 20, 'x');
  clients[0]->say(big);
  clients[0]->log.await(big);
}

TEST(Job, ALeaveIsToldToTheOthersAndEndsWithoutACallback) {
  TestServer server(3);
  Clients clients = formed(server, 3);
  clients[1]->say("last words");
  (*clients[1])->leave(kPatience);
  (*clients[1])->leave(kPatience);
  server.log.await("left 1");
  clients[0]->log.await("left 1");
  clients[2]->log.await("left 1");
  EXPECT_EQ(server.log.count("message 1 last words"), 1);
  EXPECT_TRUE(clients[1]->log.lines().empty());
  EXPECT_EQ(server.log.count("lost"), 0);
  EXPECT_EQ(server.log.count("epoch end"), 0);
  (*clients[0])->leave(kPatience);
  (*clients[2])->leave(kPatience);
  server.log.await("epoch end");
}

TEST(Job, ALeaveThatIsAnnouncedIsToldOnceAndAtOnce) {
  TestServer server(3);
  Clients clients = formed(server, 3);
  server.loop().run_sync([&] {
    server->announce_leave(1);
    server->announce_leave(1);
  });
  clients[0]->log.await("left 1");
  clients[2]->log.await("left 1");
  EXPECT_EQ(server.log.count("left 1"), 0);
  clients[1]->say("still there");
  server.log.await("message 1 still there");
  EXPECT_TRUE(clients[1]->log.lines().empty());
  (*clients[1])->leave(kPatience);
  server.log.await("left 1");
  (*clients[2])->leave(kPatience);
  clients[0]->log.await("left 2");
  EXPECT_EQ(clients[0]->log.count("left 1"), 1);
  (*clients[0])->leave(kPatience);
  server.log.await("epoch end");
}

TEST(Job, ARankThatDiesAfterItsAnnouncedLeaveIsNotLost) {
  TestServer server(3);
  Clients clients = formed(server, 3);
  server.loop().run_sync([&] { server->announce_leave(1); });
  clients[0]->log.await("left 1");
  clients[1]->drop();
  server.log.await("left 1");
  expect_contains(server.log.await("warning after it had left"), {"rank 1", "without leaving"});
  (*clients[0])->leave(kPatience);
  clients[2]->log.await("left 0");
  (*clients[2])->leave(kPatience);
  server.log.await("epoch end");
  EXPECT_EQ(server.log.count("lost"), 0);
  EXPECT_EQ(clients[2]->log.count("lost"), 0);
  EXPECT_EQ(clients[2]->log.count("left 1"), 1);
}

TEST(Job, ALossIsToldAfterTheLeavesBeforeItAndBeforeTheEnd) {
  TestServer server(3);
  Clients clients = formed(server, 3);
  (*clients[1])->leave(kPatience);
  (*clients[2])->leave(kPatience);
  clients[0]->drop();
  server.log.await("epoch end");
  std::vector<std::string> told = server.log.lines();
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(told[1], "left 1");
  EXPECT_EQ(told[2], "left 2");
  EXPECT_TRUE(told[3].starts_with("lost 0")) << told[3];
}

TEST(Job, ADroppedConnectionIsALossThatNamesTheRank) {
  TestServer server(3);
  Clients clients = formed(server, 3);
  clients[1]->drop();
  for (EventLog* log : {&server.log, &clients[0]->log, &clients[2]->log}) {
    expect_contains(log->await("lost 1"), {"peer lost", "rank 1 (host node-1, process 1001)", "without leaving"});
  }
  EXPECT_EQ(server.log.count("epoch end"), 0);
  clients[0]->drop();
  server.log.await("lost 0");
  (*clients[2])->leave(kPatience);
  server.log.await("epoch end");
}

TEST(Job, AReportedExitBecomesTheCauseEvenWhenItComesAfterTheEnd) {
  TestServer server(2, [](ServerOptions& options) { options.exit_report_wait = kPatience; });
  Clients clients = formed(server, 2);
  clients[1]->drop();
  // No notice may be sent before the report; an answered message proves that the loop of the server has run since.
  clients[0]->say("echo still here");
  clients[0]->log.await("echo still here");
  server.loop().run_sync([&] { server->report_exit(1, "killed by signal 9 (Killed)"); });
  const std::string line = clients[0]->log.await("lost 1");
  expect_contains(line, {"rank 1 (host node-1, process 1001) ended: killed by signal 9 (Killed)"});
  server.log.await("lost 1");
}

TEST(Job, AnUnreportedEndIsToldAfterTheWait) {
  TestServer server(2, [](ServerOptions& options) { options.exit_report_wait = kExitReportWait; });
  Clients clients = formed(server, 2);
  clients[1]->drop();
  expect_contains(clients[0]->log.await("lost 1"), {"without leaving"});
}

TEST(Job, AReportedExitOfAConnectionThatStaysOpenIsALoss) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  server.loop().run_sync([&] { server->report_exit(1, "exit code 3"); });
  expect_contains(clients[0]->log.await("lost 1"), {"exit code 3"});
  expect_contains(clients[1]->log.await("disconnected"), {"gave this rank up", "exit code 3"});
}

TEST(Job, AReportOfAnExitAfterALeaveIsNoLoss) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  (*clients[1])->leave(kPatience);
  server.loop().run_sync([&] { server->report_exit(1, "exit code 0"); });
  clients[0]->say("echo x");
  clients[0]->log.await("echo x");
  EXPECT_EQ(clients[0]->log.count("lost"), 0);
  EXPECT_EQ(server.log.count("lost"), 0);
}

TEST(Job, ASilentRankIsLostAndToldSoWhenItWakes) {
  TestServer server(2, [](ServerOptions& options) {
    options.heartbeat_interval = 50ms;
    options.heartbeat_timeout = 500ms;
  });
  Clients clients = formed(server, 2);
  std::promise<void> release;
  clients[1]->loop().post([&] { release.get_future().wait(); });
  expect_contains(clients[0]->log.await("lost 1"), {"rank 1 (host node-1", "has been silent for ", "stopped"});
  release.set_value();
  expect_contains(clients[1]->log.await("disconnected"), {"gave this rank up", "silent"});
  EXPECT_EQ(clients[1]->log.lines().size(), 1u);
}

TEST(Job, AServerThatGoesIsToldOnceToEveryMember) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  server.stop();
  for (auto& client : clients) {
    expect_contains(client->log.await("disconnected"), {"peer lost", "127.0.0.1", "is gone", "launcher"});
    client->say("into the void");
    (*client)->leave(kPatience);
    EXPECT_EQ(client->log.lines().size(), 1u);
  }
}

TEST(Job, ASilentServerIsNoticedByItsClients) {
  TestServer server(1);
  Clients clients = formed(server, 1, [](ClientOptions& options) {
    options.heartbeat_interval = 50ms;
    options.heartbeat_timeout = 500ms;
  });
  std::promise<void> release;
  server.loop().post([&] { release.get_future().wait(); });
  expect_contains(clients[0]->log.await("disconnected"), {"silent for ", "process is stopped"});
  release.set_value();
}

TEST(Job, AServerThatWasStoppedItselfDoesNotBlameItsClients) {
  TestServer server(2, [](ServerOptions& options) {
    options.heartbeat_interval = 50ms;
    options.heartbeat_timeout = 300ms;
  });
  Clients clients = formed(server, 2);
  std::promise<void> release;
  server.loop().post([&] { release.get_future().wait_for(600ms); });
  clients[0]->say("echo after");
  clients[0]->log.await("echo after");
  clients[1]->say("echo after");
  clients[1]->log.await("echo after");
  EXPECT_EQ(server.log.count("lost"), 0);
}

TEST(Job, AHandlerThatThrowsEndsOnlyTheConnectionItHandled) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  clients[1]->say("trip");
  server.log.await("internal error");
  expect_contains(clients[0]->log.await("lost 1"), {"could not be handled"});
  clients[0]->say("echo fine");
  clients[0]->log.await("echo fine");
}

TEST(Job, RandomLeavesAndDeathsAreAllAccountedFor) {
  std::mt19937 random(std::random_device{}());
  const auto seed = random();
  SCOPED_TRACE("seed " + std::to_string(seed));
  random.seed(seed);
  constexpr int kSize = 3;
  constexpr int kEpochs = 15;
  TestServer server(kSize);
  int left = 0;
  int lost = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    Clients clients = formed(server, kSize);
    std::vector<std::thread> threads;
    for (auto& client : clients) {
      const bool leaves = random() % 2 == 0;
      (leaves ? left : lost) += 1;
      threads.emplace_back([&client, leaves] {
        client->say("echo x");
        if (leaves) {
          (*client)->leave(kPatience);
        } else {
          client->drop();
        }
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
  }
  server.log.await("epoch " + std::to_string(kEpochs));
  while (server.log.count("epoch end") < kEpochs) {
    server.loop().run_sync([] {});
  }
  EXPECT_EQ(server.log.count("left "), left);
  EXPECT_EQ(server.log.count("lost "), lost);
  EXPECT_EQ(server->strangers(), 0u);
}

TEST(Job, ClockOffsetsOfOneHostAreNearZero) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  clients[1]->say("echo x");
  clients[1]->log.await("echo x");
  server.loop().run_sync([&] {
    EXPECT_LT(std::chrono::abs(server->clock_offset(1)), 50ms);
    EXPECT_THROW(static_cast<void>(server->clock_offset(2)), std::logic_error);
  });
}

TEST(Job, HundredEpochsOnOneServerLeakNothing) {
  TestServer server(2);
  AsioLoop loop0("rank-0");
  AsioLoop loop1("rank-1");
  auto one_epoch = [&](std::uint32_t epoch) {
    Clients clients;
    clients.push_back(std::make_unique<TestClient>(&loop0));
    clients.push_back(std::make_unique<TestClient>(&loop1));
    ASSERT_TRUE(clients[0]->connect(server).ok());
    ASSERT_TRUE(clients[1]->connect(server).ok());
    for (const auto& result : join_all(clients, {join_request(0, 2), join_request(1, 2)})) {
      ASSERT_TRUE(result) << result.status().to_string();
      ASSERT_EQ(result->epoch, Epoch(epoch));
    }
    (*clients[0])->leave(kPatience);
    (*clients[1])->leave(kPatience);
  };
  one_epoch(1);
  server.loop().run_sync([] {});
  const int descriptors = entries_of("/proc/self/fd");
  const int threads = entries_of("/proc/self/task");
  for (std::uint32_t epoch = 2; epoch <= 100; ++epoch) {
    one_epoch(epoch);
  }
  server.log.await("epoch 100 of 2");
  // Wait until the server has closed its side of the last two connections.
  while (entries_of("/proc/self/fd") > descriptors + 2) {
    server.loop().run_sync([] {});
  }
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
}

TEST(Job, ARankThatJoinsAgainEarlyWaitsForTheEndOfTheOldEpoch) {
  TestServer server(2);
  Clients old = formed(server, 2);
  (*old[0])->leave(kPatience);
  TestClient again0;
  ASSERT_TRUE(again0.connect(server).ok());
  auto joined0 = std::async(std::launch::async, [&] { return again0->join(join_request(0, 2)); });
  old[1]->say("echo busy");
  old[1]->log.await("echo busy");
  EXPECT_EQ(server.log.count("epoch end"), 0);
  (*old[1])->leave(kPatience);
  TestClient again1;
  ASSERT_TRUE(again1.connect(server).ok());
  const auto joined1 = again1->join(join_request(1, 2));
  ASSERT_TRUE(joined1) << joined1.status().to_string();
  EXPECT_EQ(joined1->epoch, Epoch(2));
  EXPECT_TRUE(joined0.get());
}

TEST(Job, ARankThatJoinsAgainWaitsNoLongerThanTheJoinTimeout) {
  TestServer server(2, [](ServerOptions& options) { options.join_timeout = 100ms; });
  Clients old = formed(server, 2);
  (*old[0])->leave(kPatience);
  TestClient again;
  ASSERT_TRUE(again.connect(server).ok());
  const auto joined = again->join(join_request(0, 2));
  EXPECT_EQ(joined.status().code(), Code::kTimeout);
  expect_contains(joined.status().to_string(), {"epoch 1 did not end", "rank 1 did not leave"});
  old[1]->say("echo fine");
  old[1]->log.await("echo fine");
}

TEST(Job, AnIdleJobWakesOnlyForHeartbeats) {
  TestServer server(2, [](ServerOptions& options) { options.heartbeat_interval = 40ms; });
  Clients clients = formed(server, 2);
  // Counts the wake-ups of the server loop over ten heartbeat intervals.
  std::promise<void> done;
  std::uint64_t before = 0;
  server.loop().run_sync([&] {
    before = server.loop().wakeups();
    server.loop().after(400ms, [&] { done.set_value(); });
  });
  const std::uint64_t client_before = clients[0]->loop().wakeups();
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  const auto intervals = static_cast<std::uint64_t>((std::chrono::steady_clock::now() - start) / 40ms + 1);
  // One interval has a tick and two answers on the server, and one ping on the client; the slack is for the first round
  // trips.
  EXPECT_LE(server.loop().wakeups() - before, 3 * intervals + 20);
  EXPECT_LE(clients[0]->loop().wakeups() - client_before, intervals + 10);
}

}  // namespace
}  // namespace sirtaki::rendezvous
