// Tests of connecting and joining that fail: every rank gets the same error, which names the cause and the fix.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/unit/rendezvous/world.h"

namespace sirtaki::rendezvous {
namespace {

using namespace std::chrono_literals;

void expect_contains(const Status& status, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(status.to_string().find(part), std::string::npos) << "no '" << part << "' in: " << status.to_string();
  }
}

// Joins with the given requests, expects that all fail with the same text, and returns the error.
Status common_failure(TestServer& server, const std::vector<JoinRequest>& requests) {
  Clients clients;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    clients.push_back(std::make_unique<TestClient>());
    EXPECT_TRUE(clients.back()->connect(server).ok());
  }
  const auto results = join_all(clients, requests);
  for (const auto& result : results) {
    EXPECT_FALSE(result);
    EXPECT_EQ(result.status().to_string(), results[0].status().to_string());
  }
  for (auto& client : clients) {
    EXPECT_TRUE(client->log.lines().empty()) << "a failed join has no callbacks";
  }
  return results[0].status();
}

TEST(Joining, AnotherVersionIsOneErrorOnEveryRank) {
  TestServer server(3);
  auto odd = join_request(1, 3);
  odd.version = "2.0";
  const Status status = common_failure(server, {join_request(0, 3), odd, join_request(2, 3)});
  EXPECT_EQ(status.code(), Code::kMismatch);
  expect_contains(status, {"Sirtaki version differs", "'1.0' on ranks 0, 2", "'2.0' on rank 1", "fix: install"});
  EXPECT_EQ(status.blame().rank, 1);
}

TEST(Joining, AnotherOptionValueNamesOptionRanksAndBothValues) {
  TestServer server(3);
  auto odd = join_request(2, 3);
  odd.agreed_options = {{"sync.mode", "backward"}};
  const Status status = common_failure(server, {join_request(0, 3), join_request(1, 3), odd});
  EXPECT_EQ(status.code(), Code::kMismatch);
  expect_contains(status, {"option sync.mode differs", "'step' on ranks 0, 1", "'backward' on rank 2", "same value"});
}

TEST(Joining, AMissingOptionIsAMismatchToo) {
  TestServer server(2);
  auto odd = join_request(0, 2);
  odd.agreed_options.clear();
  expect_contains(common_failure(server, {odd, join_request(1, 2)}), {"not set on rank 0", "'step' on rank 1"});
}

TEST(Joining, AWrongSizeFailsEveryRank) {
  TestServer server(2);
  const Status status = common_failure(server, {join_request(0, 2), join_request(1, 3)});
  expect_contains(status, {"rank 1 (host node-1, process 1001)", "started for 3 ranks", "job has 2", "fix:"});
}

TEST(Joining, ARankOutOfRangeFailsEveryRank) {
  TestServer server(2);
  const Status status = common_failure(server, {join_request(0, 2), join_request(2, 2)});
  expect_contains(status, {"rank 2", "out of range", "ranks 0 to 1", "fix:"});
  EXPECT_FALSE(server.log.await("warning no epoch").empty());
}

TEST(Joining, ADuplicateRankNamesBothProcesses) {
  TestServer server(2);
  auto twin = join_request(1, 2);
  twin.hostname = "node-9";
  twin.pid = 9;
  const Status status = common_failure(server, {join_request(1, 2), twin});
  expect_contains(status,
                  {"two processes say they are rank 1", "process 1001 on host node-1", "process 9 on host node-9"});
}

TEST(Joining, ARankThatComesAfterTheFailureGetsTheSameErrorAtOnce) {
  TestServer server(3);
  const Status first = common_failure(server, {join_request(0, 3), join_request(5, 3)});
  TestClient late;
  ASSERT_TRUE(late.connect(server).ok());
  EXPECT_EQ(late->join(join_request(1, 3)).status().to_string(), first.to_string());
  TestClient last;
  ASSERT_TRUE(last.connect(server).ok());
  EXPECT_EQ(last->join(join_request(2, 3)).status().to_string(), first.to_string());
  // Every rank has received the error, so the next attempt starts anew.
  EXPECT_TRUE(formed(server, 3).size() == 3);
}

TEST(Joining, ARankThatTriesAgainStartsAFreshAttempt) {
  TestServer server(2);
  EXPECT_EQ(common_failure(server, {join_request(0, 2), join_request(5, 2)}).code(), Code::kMismatch);
  // Rank 1 has not received the error, but rank 0 has: it waits for rank 1 instead of getting the old error.
  TestClient again;
  again.options.join_timeout = 50ms;
  ASSERT_TRUE(again.connect(server).ok());
  EXPECT_EQ(again->join(join_request(0, 2)).status().code(), Code::kTimeout);
}

TEST(Joining, TheTimeoutNamesTheAbsentRanks) {
  TestServer server(6, [](ServerOptions& options) { options.join_timeout = 100ms; });
  const Status status = common_failure(server, {join_request(0, 6), join_request(3, 6)});
  EXPECT_EQ(status.code(), Code::kTimeout);
  expect_contains(status, {"ranks 1, 2, 4, 5 did not join", "2 of 6 did", "fix:"});
}

TEST(Joining, AWaitingRankThatDiesFailsTheAttempt) {
  TestServer server(3);
  Clients clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<TestClient>());
    ASSERT_TRUE(clients.back()->connect(server).ok());
  }
  std::atomic<bool> cancel{false};
  TestClient dying;
  ASSERT_TRUE(dying.connect(server.address(), server.secret, [&] { return cancel.load(); }).ok());
  auto died = std::async(std::launch::async, [&] { return dying->join(join_request(2, 3)); });
  auto waiting = std::async(std::launch::async, [&] { return (*clients[0])->join(join_request(0, 3)); });
  // The order of the two joins does not matter: the later one finds a failed attempt.
  cancel = true;
  EXPECT_EQ(died.get().status().code(), Code::kAborted);
  const auto second = (*clients[1])->join(join_request(1, 3));
  EXPECT_EQ(second.status().code(), Code::kPeerLost);
  expect_contains(second.status(), {"rank 2 (host node-2"});
  EXPECT_EQ(waiting.get().status().to_string(), second.status().to_string());
}

TEST(Joining, AReportedExitBeforeTheJoinFailsTheAttempt) {
  TestServer server(2);
  server.loop().run_sync([&] { server->report_exit(1, "exit code 127"); });
  const Status status = common_failure(server, {join_request(0, 2)});
  EXPECT_EQ(status.code(), Code::kPeerLost);
  expect_contains(status, {"rank 1 cannot join, its process has ended: exit code 127"});
  // A join of a new process of that rank revokes the report.
  TestClient restarted;
  ASSERT_TRUE(restarted.connect(server).ok());
  auto joined = std::async(std::launch::async, [&] { return restarted->join(join_request(1, 2)); });
  // Rank 0 is refused until the request of rank 1 has arrived, because rank 1 is known to have ended.
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  Status outcome;
  do {
    TestClient other;
    ASSERT_TRUE(other.connect(server).ok());
    outcome = other->join(join_request(0, 2)).status();
  } while (!outcome.ok() && std::chrono::steady_clock::now() < deadline);
  EXPECT_TRUE(outcome.ok()) << outcome.to_string();
  EXPECT_TRUE(joined.get());
}

TEST(Joining, TheClientsOwnTimeoutEndsItsWait) {
  TestServer server(2);
  TestClient client;
  client.options.join_timeout = 50ms;
  ASSERT_TRUE(client.connect(server).ok());
  const auto joined = client->join(join_request(0, 2));
  EXPECT_EQ(joined.status().code(), Code::kTimeout);
  server.log.await("warning no epoch: rank 0 (host node-0, process 1000) gave up");
}

TEST(Joining, AServerThatEndsMeanwhileEndsTheWait) {
  TestServer server(2);
  TestClient client;
  ASSERT_TRUE(client.connect(server).ok());
  auto joined = std::async(std::launch::async, [&] { return client->join(join_request(0, 2)); });
  server.stop();
  expect_contains(joined.get().status(), {"peer lost", "is gone"});
  EXPECT_TRUE(client.log.lines().empty());
}

TEST(Connecting, RetriesUntilTheServerStarts) {
  // Picks a port that is free now; the server listens there while the client retries.
  std::uint16_t port = 0;
  {
    TestServer finder(1);
    port = finder->port();
  }
  const Secret secret = Secret::generate().value();
  TestClient client;
  std::promise<void> tried;
  std::atomic<int> polls{0};
  auto connected = std::async(std::launch::async, [&] {
    return client.connect(address_of(port), secret, [&] {
      if (polls.fetch_add(1) == 2) {
        tried.set_value();
      }
      return false;
    });
  });
  tried.get_future().wait();
  TestServer server(1, [&](ServerOptions& options) {
    options.secret = secret;
    options.port_first = options.port_last = port;
  });
  const Status status = connected.get();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Connecting, ARefusedConnectionIsNamedWithTheFix) {
  std::uint16_t port = 0;
  {
    TestServer finder(1);
    port = finder->port();
  }
  TestClient client;
  client.options.connect_timeout = 100ms;
  const Status status = client.connect(address_of(port), Secret::generate().value());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  expect_contains(status, {address_of(port), "within 0.1 s", "attempts", "connection refused", "fix:"});
}

TEST(Connecting, AServerThatNeverAnswersIsNamed) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  TestClient client;
  client.options.connect_timeout = 150ms;
  client.options.handshake_timeout = 50ms;
  const Status status = client.connect(address_of(local_address_of(listener.get()).port()), Secret::generate().value());
  expect_contains(status, {"did not answer the handshake", "fix:"});
}

TEST(Connecting, ANameThatDoesNotResolveIsNamed) {
  TestClient client;
  client.options.connect_timeout = 100ms;
  const Status status = client.connect("no-such-host.invalid:4000", Secret::generate().value());
  expect_contains(status, {"no-such-host.invalid", "resolve", "fix:"});
}

TEST(Connecting, BadAddressesAreRefusedAtOnce) {
  for (const char* text : {"", "host", "host:", ":4000", "host:0", "host:70000", "host:4x", "fd00::1:4000", "[]:1"}) {
    TestClient client;
    EXPECT_EQ(client.connect(text, Secret::generate().value()).code(), Code::kInvalidArgument) << text;
  }
  TestClient client;
  EXPECT_EQ(client.connect("127.0.0.1:4000", Secret()).code(), Code::kInvalidArgument);
}

TEST(Connecting, LocalhostResolves) {
  TestServer server(1);
  TestClient client;
  const Status status = client.connect("localhost:" + std::to_string(server->port()), server.secret);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Connecting, CancellingEndsItSoon) {
  std::atomic<int> polls{0};
  TestClient client;
  client.options.connect_timeout = 1h;
  const Status status = client.connect("127.0.0.1:9", Secret::generate().value(), [&] { return ++polls > 3; });
  EXPECT_EQ(status.code(), Code::kAborted);
}

TEST(Connecting, EndlessTimeoutsDoNotOverflow) {
  TestServer server(1, [](ServerOptions& options) {
    options.join_timeout = Duration::max();
    options.heartbeat_timeout = Duration::max();
    options.handshake_timeout = Duration::max();
  });
  Clients clients = formed(server, 1, [](ClientOptions& options) {
    options.connect_timeout = Duration::max();
    options.handshake_timeout = Duration::max();
    options.join_timeout = Duration::max();
    options.heartbeat_timeout = Duration::max();
  });
  clients[0]->say("echo x");
  clients[0]->log.await("echo x");
  (*clients[0])->leave(Duration::max());
}

}  // namespace
}  // namespace sirtaki::rendezvous
