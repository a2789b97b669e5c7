#include "runtime/net/tcp/transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/unit/net/tcp/transport_node.h"

namespace sirtaki::net::testing {
namespace {

// Two connected ranks.
class TransportPair : public ::testing::Test {
 protected:
  void start(const TransportOptions& options = {}, const std::string& host = "127.0.0.1") {
    const Secret secret = make_secret();
    for (int i = 0; i < 2; ++i) {
      nodes.push_back(std::make_unique<Node>(secret, options));
      ASSERT_TRUE(nodes.back()->listen().ok());
    }
    const auto membership = membership_of({endpoint_of(*nodes[0], host), endpoint_of(*nodes[1], host)});
    std::array<SharedOutcome, 2> connected;
    for (Rank rank = 0; rank < 2; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      nodes[index]->run([&] { nodes[index]->transport->connect(membership, rank, connected[index].done()); });
    }
    ASSERT_TRUE(wait_until([&] { return connected[0].calls == 1 && connected[1].calls == 1; }));
    ASSERT_TRUE(connected[0].status.ok()) << connected[0].status.to_string();
    ASSERT_TRUE(connected[1].status.ok()) << connected[1].status.to_string();
  }
  void TearDown() override { nodes.clear(); }

  std::vector<std::unique_ptr<Node>> nodes;
};

TEST_F(TransportPair, MovesMessagesOfEverySizeBothWays) {
  start();
  for (const std::size_t size : {0U, 1U, 65536U, 65537U, 524288U, 3000001U}) {
    const auto data = pattern(size, 9);
    std::array<std::vector<std::byte>, 2> out{std::vector<std::byte>(size), std::vector<std::byte>(size)};
    std::array<SharedOutcome, 4> outcomes;
    for (Rank rank = 0; rank < 2; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      nodes[index]->run([&] {
        nodes[index]->transport->recv(to(1 - rank, size + 1), out[index], outcomes[2 * index].done());
        nodes[index]->transport->send(to(1 - rank, size + 1), data, outcomes[2 * index + 1].done());
      });
    }
    for (SharedOutcome& outcome : outcomes) {
      ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    }
    EXPECT_EQ(out[0], data);
    EXPECT_EQ(out[1], data);
  }
}

TEST_F(TransportPair, WorksOverIpv6) {
  start({}, "::1");
  const auto data = pattern(100000, 1);
  std::vector<std::byte> out(data.size());
  SharedOutcome received;
  SharedOutcome sent;
  nodes[0]->run([&] { nodes[0]->transport->recv(to(1, 1), out, received.done()); });
  nodes[1]->run([&] { nodes[1]->transport->send(to(0, 1), data, sent.done()); });
  ASSERT_TRUE(wait_until([&] { return received.calls == 1 && sent.calls == 1; }));
  EXPECT_EQ(out, data);
}

TEST_F(TransportPair, ADestroyedPeerEndsEveryOperationWithIt) {
  start();
  std::vector<std::byte> out(1000000);
  SharedOutcome received;
  std::atomic<int> lost{0};
  nodes[0]->run([&] {
    nodes[0]->transport->set_on_peer_lost([&](Rank peer, Status cause) {
      EXPECT_EQ(peer, 1);
      EXPECT_EQ(cause.code(), Code::kPeerLost);
      ++lost;
    });
    nodes[0]->transport->recv(to(1, 1), out, received.done());
  });
  nodes[1]->run([&] { nodes[1]->transport.reset(); });
  ASSERT_TRUE(wait_until([&] { return received.calls == 1 && lost == 1; }));
  EXPECT_EQ(received.status.code(), Code::kPeerLost);
  EXPECT_EQ(received.status.blame().rank, 1);
  EXPECT_NE(received.status.text().find("host1"), std::string_view::npos);
  SharedOutcome later;
  nodes[0]->run([&] { nodes[0]->transport->send(to(1, 2), out, later.done()); });
  ASSERT_TRUE(wait_until([&] { return later.calls == 1; }));
  EXPECT_EQ(later.status.code(), Code::kPeerLost);
}

TEST_F(TransportPair, ClosingIsNotALoss) {
  start();
  std::atomic<int> lost{0};
  std::array<SharedOutcome, 2> closed;
  SharedOutcome pending;
  std::vector<std::byte> out(10);
  for (std::size_t i = 0; i < 2; ++i) {
    nodes[i]->run([&] { nodes[i]->transport->set_on_peer_lost([&](Rank, Status) { ++lost; }); });
  }
  nodes[0]->run([&] {
    nodes[0]->transport->recv(to(1, 1), out, pending.done());
    nodes[0]->transport->close(closed[0].done());
  });
  nodes[1]->run([&] { nodes[1]->transport->close(closed[1].done()); });
  ASSERT_TRUE(wait_until([&] { return closed[0].calls == 1 && closed[1].calls == 1 && pending.calls == 1; }));
  EXPECT_EQ(pending.status.code(), Code::kShutdown);
  EXPECT_EQ(lost, 0);
}

TEST_F(TransportPair, TransfersAreCancelledAnywhereWithoutHarm) {
  start();
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::size_t size = 1 + random() % 3000000;
    auto data = std::make_unique<std::vector<std::byte>>(size);
    auto out = std::make_unique<std::vector<std::byte>>(size);
    SharedOutcome sent;
    SharedOutcome received;
    nodes[0]->run([&] { nodes[0]->transport->send(to(1, seed), *data, sent.done()); });
    nodes[1]->run([&] { nodes[1]->transport->recv(to(0, seed), *out, received.done()); });
    // Waits by the clock, since one yield may outlast the whole transfer on a busy machine.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 2000);
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    const Status cause(Code::kAborted, "test");
    const bool sender_first = random() % 2 == 0;
    for (const bool sender : {sender_first, !sender_first}) {
      Node& node = *nodes[sender ? 0 : 1];
      node.run([&] {
        node.transport->cancel(OpTag(seed), cause);
        (sender ? data : out).reset();
      });
    }
    ASSERT_TRUE(wait_until([&] { return sent.calls == 1 && received.calls == 1; }));
  }
  // The connection still works.
  const auto data = pattern(200000, 1);
  std::vector<std::byte> out(data.size());
  SharedOutcome received;
  SharedOutcome sent;
  nodes[1]->run([&] { nodes[1]->transport->recv(to(0, 100000), out, received.done()); });
  nodes[0]->run([&] { nodes[0]->transport->send(to(1, 100000), data, sent.done()); });
  ASSERT_TRUE(wait_until([&] { return received.calls == 1 && sent.calls == 1; }));
  EXPECT_EQ(out, data);
}

TEST_F(TransportPair, ClosesItsSocketsInProcessesThatTheProgramStarts) {
  start();
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with("socket:") && !target.starts_with("anon_inode:")) {
      continue;
    }
    const int flags = ::fcntl(std::stoi(entry.path().filename().string()), F_GETFD);
    EXPECT_TRUE(flags < 0 || (flags & FD_CLOEXEC) != 0) << target;
    sockets += target.starts_with("socket:") ? 1 : 0;
  }
  EXPECT_GE(sockets, 4);  // two listening sockets and two ends of a connection
}

TEST(TransportListen, ABusyPortRangeIsAnErrorThatNamesIt) {
  const Secret secret = make_secret();
  Node first(secret);
  ASSERT_TRUE(first.listen().ok());
  TransportOptions options;
  options.port_first = first.transport->port();
  options.port_last = first.transport->port();
  Node second(secret, options);
  const Status status = second.listen();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.text().find(std::to_string(options.port_first)), std::string_view::npos);
}

TEST(TransportLife, MeshesComeAndGoManyTimes) {
  for (int round = 0; round < 20; ++round) {
    auto world = make_tcp_world(3);
    std::vector<CollectiveArgs> args(3);
    for (auto& mine : args) {
      mine.kind = OpKind::kBarrier;
      mine.tag = OpTag(1);
    }
    for (const Status& status : run_on_all(*world, args)) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
