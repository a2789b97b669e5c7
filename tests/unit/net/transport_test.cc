#include "runtime/net/transport.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "runtime/net/endpoints.h"
#include "runtime/rendezvous/handshake.h"
#include "tests/unit/net/channel_pair.h"

namespace sirtaki::net::testing {
namespace {

using rendezvous::AsioLoop;
using rendezvous::Secret;

constexpr Epoch kEpoch(5);

// A callback's outcome, read by the test's thread.
struct SharedOutcome {
  std::atomic<int> calls{0};
  Status status;  // after calls != 0
  Done done() {
    return [this](Status result) {
      status = std::move(result);
      ++calls;
      notify();
    };
  }
};

// One rank: its loop and its transport.
struct Node {
  explicit Node(const Secret& secret, const TransportOptions& options = {}, const std::string& name = "node")
      : loop(name) {
    run([&] { transport = std::make_unique<Transport>(loop, secret, options); });
  }
  ~Node() {
    run([&] { transport.reset(); });
  }
  template <class Fn>
  void run(Fn fn) {
    loop.run_sync([&fn] { fn(); });
  }
  Status listen() {
    Status status;
    run([&] { status = transport->listen(); });
    return status;
  }

  AsioLoop loop;
  std::unique_ptr<Transport> transport;
};

rendezvous::Membership membership_of(const std::vector<std::string>& endpoints) {
  rendezvous::Membership membership;
  membership.epoch = kEpoch;
  for (std::size_t rank = 0; rank < endpoints.size(); ++rank) {
    rendezvous::Member member;
    member.rank = static_cast<Rank>(rank);
    member.hostname = "host" + std::to_string(rank);
    member.data_endpoints = {endpoints[rank]};
    membership.members.push_back(member);
  }
  return membership;
}

std::string endpoint_of(const Node& node, const std::string& host = "127.0.0.1") {
  return format_endpoint({host, node.transport->port()});
}

Secret make_secret() {
  return *Secret::generate();
}

// Two connected ranks.
class TransportPair : public ::testing::Test {
 protected:
  void start(const TransportOptions& options = {}, const std::string& host = "127.0.0.1") {
    const Secret secret = make_secret();
    for (int i = 0; i < 2; ++i) {
      nodes.push_back(std::make_unique<Node>(secret, options));
      ASSERT_TRUE(nodes.back()->listen());
    }
    const auto membership = membership_of({endpoint_of(*nodes[0], host), endpoint_of(*nodes[1], host)});
    std::array<SharedOutcome, 2> connected;
    for (Rank rank = 0; rank < 2; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      nodes[index]->run([&] { nodes[index]->transport->connect(membership, rank, connected[index].done()); });
    }
    ASSERT_TRUE(wait_until([&] { return connected[0].calls == 1 && connected[1].calls == 1; }));
    ASSERT_TRUE(connected[0].status) << connected[0].status.to_string();
    ASSERT_TRUE(connected[1].status) << connected[1].status.to_string();
  }
  void TearDown() override { nodes.clear(); }

  std::vector<std::unique_ptr<Node>> nodes;
};

Envelope to(Rank peer, std::uint64_t tag) {
  return {peer, OpTag(tag), 0, 0, 0};
}

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
      EXPECT_TRUE(outcome.status) << outcome.status.to_string();
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
    // By the clock: on a busy machine one yield may outlast the whole transfer.
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

class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() { ::close(fd_); }
  void say(const std::vector<std::byte>& bytes) const { (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  std::vector<std::byte> hear(std::size_t size) const {
    std::vector<std::byte> bytes(size);
    const timeval patience{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const ssize_t got = ::recv(fd_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  bool connected() const { return connected_; }

 private:
  int fd_;
  bool connected_ = false;
};

TEST(TransportStrangers, ManySilentAndNoisyOnesDoNotKeepTheRanksFromConnecting) {
  TransportOptions options;
  options.max_strangers = 4;
  options.ranks = 2;
  const Secret secret = make_secret();
  Node first(secret, options);
  Node second(secret, options);
  ASSERT_TRUE(first.listen());
  ASSERT_TRUE(second.listen());
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (unsigned i = 0; i < 20; ++i) {
    strangers.push_back(std::make_unique<Stranger>(first.transport->port()));
    ASSERT_TRUE(strangers.back()->connected());
    if (i % 2 == 0) {
      strangers.back()->say(pattern(300, i));
    }
  }
  const auto membership = membership_of({endpoint_of(first), endpoint_of(second)});
  SharedOutcome one;
  SharedOutcome two;
  first.run([&] { first.transport->connect(membership, 0, one.done()); });
  second.run([&] { second.transport->connect(membership, 1, two.done()); });
  ASSERT_TRUE(wait_until([&] { return one.calls == 1 && two.calls == 1; }));
  EXPECT_TRUE(one.status) << one.status.to_string();
  EXPECT_TRUE(two.status) << two.status.to_string();
}

TEST(TransportConnect, AnotherSecretIsRefusedAtOnce) {
  Node first(make_secret());
  Node second(make_secret());
  ASSERT_TRUE(first.listen());
  ASSERT_TRUE(second.listen());
  SharedOutcome outcome;
  const auto membership = membership_of({endpoint_of(first), endpoint_of(second)});
  second.run([&] { second.transport->connect(membership, 1, outcome.done()); });
  ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
  EXPECT_EQ(outcome.status.code(), Code::kUnavailable);
  EXPECT_NE(outcome.status.text().find("secret"), std::string_view::npos) << outcome.status.to_string();
}

TEST(TransportConnect, AnUnreachablePeerIsNamedWithItsAddress) {
  TransportOptions options;
  options.connect_timeout = std::chrono::milliseconds(150);
  const Secret secret = make_secret();
  Node node(secret, options);
  ASSERT_TRUE(node.listen());
  // A port that was free a moment ago.
  std::uint16_t free_port = 0;
  {
    Node other(secret);
    ASSERT_TRUE(other.listen());
    free_port = other.transport->port();
  }
  const std::string dead = format_endpoint({"127.0.0.1", free_port});
  SharedOutcome outcome;
  const auto membership = membership_of({dead, endpoint_of(node)});
  node.run([&] { node.transport->connect(membership, 1, outcome.done()); });
  ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
  EXPECT_FALSE(outcome.status);
  EXPECT_EQ(outcome.status.blame().rank, 0);
  for (const std::string& part : {dead, std::string("host0"), std::string("net.interface")}) {
    EXPECT_NE(outcome.status.text().find(part), std::string_view::npos) << outcome.status.to_string();
  }
}

TEST(TransportConnect, DifferentLimitsAreAMismatchOnBothRanks) {
  const Secret secret = make_secret();
  TransportOptions other;
  other.limits.eager_bytes = 1000;
  Node first(secret);
  Node second(secret, other);
  ASSERT_TRUE(first.listen());
  ASSERT_TRUE(second.listen());
  const auto membership = membership_of({endpoint_of(first), endpoint_of(second)});
  SharedOutcome one;
  SharedOutcome two;
  first.run([&] { first.transport->connect(membership, 0, one.done()); });
  second.run([&] { second.transport->connect(membership, 1, two.done()); });
  ASSERT_TRUE(wait_until([&] { return one.calls == 1 && two.calls == 1; }));
  EXPECT_EQ(one.status.code(), Code::kMismatch);
  EXPECT_EQ(two.status.code(), Code::kMismatch);
}

// Three ranks; `told` may change the addresses that rank 2 is told.
std::array<Status, 3> connect_three(const TransportOptions& options,
                                    const std::function<void(rendezvous::Membership&)>& told) {
  const Secret secret = make_secret();
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::string> endpoints;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(std::make_unique<Node>(secret, options));
    EXPECT_TRUE(nodes.back()->listen());
    endpoints.push_back(endpoint_of(*nodes.back()));
  }
  std::array<SharedOutcome, 3> outcomes;
  for (Rank rank = 0; rank < 3; ++rank) {
    auto membership = membership_of(endpoints);
    if (rank == 2) {
      told(membership);
    }
    const auto index = static_cast<std::size_t>(rank);
    nodes[index]->run([&] { nodes[index]->transport->connect(membership, rank, outcomes[index].done()); });
  }
  std::array<Status, 3> results;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(wait_until([&] { return outcomes[i].calls == 1; }));
    results[i] = outcomes[i].status;
  }
  return results;
}

TEST(TransportConnect, AnAddressThatLeadsToAnotherRankIsNotTakenForTheRightOne) {
  for (const Status& status : connect_three({}, [](rendezvous::Membership& membership) {
         auto& endpoints = membership.members[0].data_endpoints;
         endpoints.insert(endpoints.begin(), membership.members[1].data_endpoints.front());
       })) {
    EXPECT_TRUE(status) << status.to_string();
  }
  TransportOptions options;
  options.connect_timeout = std::chrono::seconds(2);
  const auto results = connect_three(options, [](rendezvous::Membership& membership) {
    membership.members[0].data_endpoints = membership.members[1].data_endpoints;
  });
  EXPECT_EQ(results[2].blame().rank, 0);
  EXPECT_NE(results[2].text().find("rank 1 answers there"), std::string_view::npos) << results[2].to_string();
}

TEST(TransportConnect, ARankThatComesLateToConnectingIsWaitedFor) {
  const Secret secret = make_secret();
  TransportOptions options;
  options.handshake_timeout = std::chrono::milliseconds(200);
  Node late(secret, options);
  Node early(secret, options);
  ASSERT_TRUE(late.listen());
  ASSERT_TRUE(early.listen());
  const auto membership = membership_of({endpoint_of(late), endpoint_of(early)});
  SharedOutcome one;
  SharedOutcome two;
  early.run([&] { early.transport->connect(membership, 1, two.done()); });
  late.run([&] {
    late.loop.after(5 * options.handshake_timeout, [&] { late.transport->connect(membership, 0, one.done()); });
  });
  ASSERT_TRUE(wait_until([&] { return one.calls == 1 && two.calls == 1; }));
  EXPECT_TRUE(one.status) << one.status.to_string();
  EXPECT_TRUE(two.status) << two.status.to_string();
  // Neither lives on a connection that the other has given up.
  const auto data = pattern(1000, 1);
  std::vector<std::byte> out(data.size());
  SharedOutcome received;
  SharedOutcome sent;
  late.run([&] { late.transport->recv(to(1, 1), out, received.done()); });
  early.run([&] { early.transport->send(to(0, 1), data, sent.done()); });
  ASSERT_TRUE(wait_until([&] { return received.calls == 1 && sent.calls == 1; }));
  EXPECT_TRUE(received.status) << received.status.to_string();
}

TEST(TransportConnect, ARankThatDoesNotComeIsNamedWithWhatIsKnownOfIt) {
  const Secret secret = make_secret();
  TransportOptions options;
  options.connect_timeout = std::chrono::milliseconds(500);
  Node absent(secret, options);
  Node node(secret, options);
  ASSERT_TRUE(absent.listen());
  ASSERT_TRUE(node.listen());
  SharedOutcome outcome;
  const auto membership = membership_of({endpoint_of(absent), endpoint_of(node)});
  node.run([&] { node.transport->connect(membership, 1, outcome.done()); });
  ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
  EXPECT_EQ(outcome.status.blame().rank, 0);
  EXPECT_NE(outcome.status.text().find("has not come as far"), std::string_view::npos) << outcome.status.to_string();
}

TEST(TransportStrangers, RanksThatAllComeAtOnceDoNotEvictEachOther) {
  TransportOptions options;
  options.ranks = 200;
  const Secret secret = make_secret();
  Node node(secret, options);
  ASSERT_TRUE(node.listen());
  std::vector<std::unique_ptr<Stranger>> ranks;
  std::vector<rendezvous::Handshake> handshakes;
  for (int i = 0; i < options.ranks; ++i) {
    ranks.push_back(std::make_unique<Stranger>(node.transport->port()));
    ASSERT_TRUE(ranks.back()->connected());
  }
  // All are there before the first says a word.
  for (const auto& rank : ranks) {
    handshakes.push_back(rendezvous::Handshake::initiator(secret, rendezvous::Purpose::kData, {}));
    rank->say(handshakes.back().take_output());
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_TRUE(handshakes[i].feed(ranks[i]->hear(74))) << i;
    EXPECT_TRUE(handshakes[i].done()) << i;
  }
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
  EXPECT_GE(sockets, 4);  // two that listen, two ends of a connection
}

TEST(TransportListen, ABusyPortRangeIsAnErrorThatNamesIt) {
  const Secret secret = make_secret();
  Node first(secret);
  ASSERT_TRUE(first.listen());
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
      ASSERT_TRUE(status) << status.to_string();
    }
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
