// Transport meshes that form in spite of strangers, late ranks and wrong addresses.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>

#include "runtime/rendezvous/auth/handshake.h"
#include "runtime/rendezvous/link/auth_listener.h"
#include "tests/unit/net/tcp/transport_node.h"

namespace sirtaki::net::testing {
namespace {

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

// Accepts data connections with the secret of the job and sends `bytes` over each.
class AnsweringStranger final : public rendezvous::GateHandler {
 public:
  AnsweringStranger(const Secret& secret, std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {
    rendezvous::GateOptions options;
    options.bind_address = "127.0.0.1";
    options.secret = secret;
    options.purpose = rendezvous::Purpose::kData;
    gate_ = rendezvous::AuthListener::open(loop_, std::move(options), *this).value();
  }
  ~AnsweringStranger() override {
    loop_.run_sync([this] {
      guests_.clear();
      gate_.reset();
    });
  }
  std::uint16_t port() const { return gate_->port(); }
  void on_guest(rendezvous::Guest guest) override {
    (void)::send(guest.socket.native_handle(), bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
    guests_.push_back(std::move(guest));
  }
  void on_gate_warning(const std::string& /*line*/) override {}

 private:
  AsioLoop loop_{"stranger"};
  const std::vector<std::byte> bytes_;
  std::vector<rendezvous::Guest> guests_;
  std::unique_ptr<rendezvous::AuthListener> gate_;
};

TEST(TransportStrangers, ManySilentAndNoisyOnesDoNotKeepTheRanksFromConnecting) {
  TransportOptions options;
  options.max_strangers = 4;
  options.ranks = 2;
  const Secret secret = make_secret();
  Node first(secret, options);
  Node second(secret, options);
  ASSERT_TRUE(first.listen().ok());
  ASSERT_TRUE(second.listen().ok());
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
  EXPECT_TRUE(one.status.ok()) << one.status.to_string();
  EXPECT_TRUE(two.status.ok()) << two.status.to_string();
}

TEST(TransportConnect, AnotherSecretIsRefusedAtOnce) {
  Node first(make_secret());
  Node second(make_secret());
  ASSERT_TRUE(first.listen().ok());
  ASSERT_TRUE(second.listen().ok());
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
  ASSERT_TRUE(node.listen().ok());
  // Finds a port on which no process listens.
  std::uint16_t free_port = 0;
  {
    Node other(secret);
    ASSERT_TRUE(other.listen().ok());
    free_port = other.transport->port();
  }
  const std::string dead = format_endpoint({"127.0.0.1", free_port});
  SharedOutcome outcome;
  const auto membership = membership_of({dead, endpoint_of(node)});
  node.run([&] { node.transport->connect(membership, 1, outcome.done()); });
  ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
  EXPECT_FALSE(outcome.status.ok());
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
  ASSERT_TRUE(first.listen().ok());
  ASSERT_TRUE(second.listen().ok());
  const auto membership = membership_of({endpoint_of(first), endpoint_of(second)});
  SharedOutcome one;
  SharedOutcome two;
  first.run([&] { first.transport->connect(membership, 0, one.done()); });
  second.run([&] { second.transport->connect(membership, 1, two.done()); });
  ASSERT_TRUE(wait_until([&] { return one.calls == 1 && two.calls == 1; }));
  EXPECT_EQ(one.status.code(), Code::kMismatch);
  EXPECT_EQ(two.status.code(), Code::kMismatch);
}

// Connects three ranks; `told` may change the addresses that rank 2 receives.
std::array<Status, 3> connect_three(const TransportOptions& options,
                                    const std::function<void(rendezvous::Membership&)>& told) {
  const Secret secret = make_secret();
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::string> endpoints;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(std::make_unique<Node>(secret, options));
    EXPECT_TRUE(nodes.back()->listen().ok());
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
    EXPECT_TRUE(status.ok()) << status.to_string();
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
  ASSERT_TRUE(late.listen().ok());
  ASSERT_TRUE(early.listen().ok());
  const auto membership = membership_of({endpoint_of(late), endpoint_of(early)});
  SharedOutcome one;
  SharedOutcome two;
  early.run([&] { early.transport->connect(membership, 1, two.done()); });
  late.run([&] {
    late.loop.after(5 * options.handshake_timeout, [&] { late.transport->connect(membership, 0, one.done()); });
  });
  ASSERT_TRUE(wait_until([&] { return one.calls == 1 && two.calls == 1; }));
  EXPECT_TRUE(one.status.ok()) << one.status.to_string();
  EXPECT_TRUE(two.status.ok()) << two.status.to_string();
  // Both ranks use the same connection: neither keeps one that the other has closed.
  const auto data = pattern(1000, 1);
  std::vector<std::byte> out(data.size());
  SharedOutcome received;
  SharedOutcome sent;
  late.run([&] { late.transport->recv(to(1, 1), out, received.done()); });
  early.run([&] { early.transport->send(to(0, 1), data, sent.done()); });
  ASSERT_TRUE(wait_until([&] { return received.calls == 1 && sent.calls == 1; }));
  EXPECT_TRUE(received.status.ok()) << received.status.to_string();
}

TEST(TransportConnect, ARankThatDoesNotComeIsNamedWithWhatIsKnownOfIt) {
  const Secret secret = make_secret();
  TransportOptions options;
  options.connect_timeout = std::chrono::milliseconds(500);
  Node absent(secret, options);
  Node node(secret, options);
  ASSERT_TRUE(absent.listen().ok());
  ASSERT_TRUE(node.listen().ok());
  SharedOutcome outcome;
  const auto membership = membership_of({endpoint_of(absent), endpoint_of(node)});
  node.run([&] { node.transport->connect(membership, 1, outcome.done()); });
  ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
  EXPECT_EQ(outcome.status.blame().rank, 0);
  node.run([&] { EXPECT_EQ(node.transport->unreachable(), std::vector<Rank>{0}); });
  EXPECT_NE(outcome.status.text().find("has not come as far"), std::string_view::npos) << outcome.status.to_string();
}

TEST(TransportStrangers, RanksThatAllComeAtOnceDoNotEvictEachOther) {
  TransportOptions options;
  options.ranks = 200;
  const Secret secret = make_secret();
  Node node(secret, options);
  ASSERT_TRUE(node.listen().ok());
  std::vector<std::unique_ptr<Stranger>> ranks;
  std::vector<rendezvous::Handshake> handshakes;
  for (int i = 0; i < options.ranks; ++i) {
    ranks.push_back(std::make_unique<Stranger>(node.transport->port()));
    ASSERT_TRUE(ranks.back()->connected());
  }
  // All ranks are connected before the first one starts its handshake.
  for (const auto& rank : ranks) {
    handshakes.push_back(rendezvous::Handshake::initiator(secret, rendezvous::Purpose::kData, {}));
    rank->say(handshakes.back().take_output());
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_TRUE(handshakes[i].feed(ranks[i]->hear(74))) << i;
    EXPECT_TRUE(handshakes[i].done()) << i;
  }
}

// Peers with the right secret send invalid hellos, before this rank knows its epoch and afterwards.
TEST(TransportStrangers, AnyHelloBehindAProvenSecretIsSurvived) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Secret secret = make_secret();
  Node first(secret);
  Node second(secret);
  ASSERT_TRUE(first.listen().ok());
  ASSERT_TRUE(second.listen().ok());
  const auto prove = [&] {
    const auto salt = static_cast<unsigned>(random());
    auto hello = pattern(salt % (rendezvous::Handshake::kMaxHello + 1), salt);
    if (salt % 2 == 0) {
      // A hello of the right size, from a rank outside the job, in this epoch or another one, to either rank.
      const std::uint32_t words[] = {kEpoch.value + salt / 2 % 2, 7, salt / 4 % 2};
      hello.resize(36);
      std::memcpy(hello.data(), words, sizeof(words));
    }
    auto handshake = rendezvous::Handshake::initiator(secret, rendezvous::Purpose::kData, hello);
    const Stranger stranger(first.transport->port());
    stranger.say(handshake.take_output());
    EXPECT_TRUE(handshake.feed(stranger.hear(74)));
    stranger.say(handshake.take_output());
    stranger.say(pattern(salt % 100, salt));
  };
  for (int i = 0; i < 50; ++i) {
    prove();
  }
  const auto membership = membership_of({endpoint_of(first), endpoint_of(second)});
  SharedOutcome one;
  SharedOutcome two;
  first.run([&] { first.transport->connect(membership, 0, one.done()); });
  for (int i = 0; i < 50; ++i) {
    prove();
  }
  second.run([&] { second.transport->connect(membership, 1, two.done()); });
  ASSERT_TRUE(wait_until([&] { return one.calls == 1 && two.calls == 1; }));
  EXPECT_TRUE(one.status.ok()) << one.status.to_string();
  EXPECT_TRUE(two.status.ok()) << two.status.to_string();
}

// The peer at the address proves the secret and then sends any bytes but a welcome.
TEST(TransportStrangers, AnyWelcomeButARanksIsRefused) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Secret secret = make_secret();
  for (int i = 0; i < 20; ++i) {
    AnsweringStranger answers(secret, pattern(64, static_cast<unsigned>(random())));
    Node node(secret);
    ASSERT_TRUE(node.listen().ok());
    const auto membership = membership_of({format_endpoint({"127.0.0.1", answers.port()}), endpoint_of(node)});
    SharedOutcome outcome;
    node.run([&] { node.transport->connect(membership, 1, outcome.done()); });
    ASSERT_TRUE(wait_until([&] { return outcome.calls == 1; }));
    EXPECT_EQ(outcome.status.blame().rank, 0);
    EXPECT_NE(outcome.status.text().find("no rank of this epoch"), std::string_view::npos)
        << outcome.status.to_string();
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
