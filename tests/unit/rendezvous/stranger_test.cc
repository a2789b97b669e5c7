// Tests of strangers: connections that do not belong to a running job; and of a server that cannot listen.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdlib>
#include <random>

#include "runtime/rendezvous/auth/handshake.h"
#include "runtime/rendezvous/link/frame.h"
#include "tests/unit/rendezvous/world.h"

namespace sirtaki::rendezvous {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> greeting_with(const Secret& secret) {
  return Handshake::initiator(secret, Purpose::kControl, {}).take_output();
}

// Proves the secret over a raw socket; the test then sends and receives bytes of its own.
void pass_handshake(RawSocket& socket, const Secret& secret) {
  auto handshake = Handshake::initiator(secret, Purpose::kControl, {});
  socket.send(handshake.take_output());
  while (!handshake.done()) {
    const auto piece = socket.read(1);
    ASSERT_EQ(piece.size(), 1u);
    ASSERT_TRUE(handshake.feed(piece));
  }
  socket.send(handshake.take_output());
}

void expect_job_works(Clients& clients) {
  for (auto& client : clients) {
    client->say("echo works");
    client->log.await("message echo works");
    EXPECT_EQ(client->log.count("lost"), 0);
    EXPECT_EQ(client->log.count("disconnected"), 0);
  }
}

TEST(Stranger, JunkIsDroppedAndCountedAndTheJobGoesOn) {
  TestServer server(2);
  Clients clients = formed(server, 2);
  std::mt19937 random(std::random_device{}());
  const auto seed = random();
  SCOPED_TRACE("seed " + std::to_string(seed));
  random.seed(seed);
  for (int i = 0; i < 20; ++i) {
    RawSocket socket(server->port());
    std::vector<std::byte> junk(random() % 2000 + 1);
    for (auto& byte : junk) {
      byte = static_cast<std::byte>(random());
    }
    socket.send(junk);
    EXPECT_TRUE(socket.await_end());
  }
  RawSocket http(server->port());
  http.send(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(http.read(1).empty());
  expect_job_works(clients);
  EXPECT_GE(server->strangers(), 21u);
  // The first refusal is logged at once; those of the next ten seconds are only counted.
  server.log.await("warning refused a connection from 127.0.0.1:");
  EXPECT_EQ(server.log.count("warning"), 1);
}

// The launcher on another host looks so, and health checks of clusters do.
TEST(Stranger, OneThatOnlyLooksWhetherSomebodyListensIsNoStranger) {
  TestServer server(1);
  for (int i = 0; i < 3; ++i) {
    RawSocket look(server->port());
    ::shutdown(look.fd(), SHUT_WR);
    EXPECT_TRUE(look.await_end());
  }
  Clients clients = formed(server, 1);
  expect_job_works(clients);
  EXPECT_EQ(server->strangers(), 0u);
  EXPECT_EQ(server.log.count("warning"), 0);
}

TEST(Stranger, ASilentOneIsDroppedAtTheHandshakeDeadline) {
  TestServer server(1, [](ServerOptions& options) { options.handshake_timeout = 50ms; });
  Clients clients = formed(server, 1);
  RawSocket silent(server->port());
  RawSocket half(server->port());
  half.send(ConstBytes(greeting_with(server.secret)).first(20));
  EXPECT_TRUE(silent.await_end());
  EXPECT_TRUE(half.await_end());
  expect_job_works(clients);
  EXPECT_EQ(server->strangers(), 2u);
}

TEST(Stranger, ASlowOneHasOneDeadlineForAllItsBytes) {
  TestServer server(1, [](ServerOptions& options) { options.handshake_timeout = 100ms; });
  Clients clients = formed(server, 1);
  RawSocket slow(server->port());
  const timeval pace{0, 10000};
  ::setsockopt(slow.fd(), SOL_SOCKET, SO_RCVTIMEO, &pace, sizeof(pace));
  const auto greeting = greeting_with(server.secret);
  const auto start = std::chrono::steady_clock::now();
  // Sends a byte every ten milliseconds, paced by the receive timeout, until the server closes the connection.
  for (std::size_t i = 0; i < greeting.size(); ++i) {
    slow.send(ConstBytes(greeting).subspan(i, 1));
    std::byte byte{};
    const ssize_t got = ::recv(slow.fd(), &byte, 1, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) {
      break;
    }
    ASSERT_LT(i + 1, greeting.size()) << "was never dropped";
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  expect_job_works(clients);
}

TEST(Stranger, TheOldestMakesRoomWhenThereAreTooMany) {
  TestServer server(1, [](ServerOptions& options) {
    options.max_unauthenticated = 4;
    options.handshake_timeout = 60s;
  });
  std::vector<std::unique_ptr<RawSocket>> crowd;
  for (int i = 0; i < 12; ++i) {
    crowd.push_back(std::make_unique<RawSocket>(server->port()));
  }
  EXPECT_TRUE(crowd.front()->await_end());
  Clients clients = formed(server, 1);
  expect_job_works(clients);
  EXPECT_GE(server->strangers(), 7u);
}

TEST(Stranger, AForgedProofAndAReplayedSessionAreDropped) {
  TestServer server(1);
  Clients clients = formed(server, 1);
  RawSocket forged(server->port());
  forged.send(greeting_with(server.secret));
  ASSERT_EQ(forged.read(74).size(), 74u);
  forged.send(std::vector<std::byte>(32, std::byte{7}));
  EXPECT_TRUE(forged.await_end());

  RawSocket recorded(server->port());
  auto handshake = Handshake::initiator(server.secret, Purpose::kControl, {});
  const auto greeting = handshake.take_output();
  recorded.send(greeting);
  ASSERT_TRUE(handshake.feed(recorded.read(74)));
  const auto proof = handshake.take_output();
  recorded.send(proof);
  RawSocket replay(server->port());
  replay.send(greeting);
  replay.send(proof);
  EXPECT_TRUE(replay.await_end());
  expect_job_works(clients);
  EXPECT_EQ(server->strangers(), 2u);
}

TEST(Stranger, AClientWithAnotherSecretGetsOneClearError) {
  TestServer server(1);
  Clients clients = formed(server, 1);
  TestClient stranger;
  const Status status = stranger.connect(server.address(), Secret::generate().value());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.text().find(server.address()), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("rejected: wrong job secret"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("fix:"), std::string::npos) << status.text();
  expect_job_works(clients);
}

TEST(Stranger, AnOversizeOrUnknownFrameEndsOnlyItsOwnConnection) {
  TestServer server(1);
  Clients clients = formed(server, 1);
  const std::vector<std::vector<std::byte>> bad = {
      {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0x7f}, std::byte{4}, {}, {}, {}},
      {std::byte{1}, {}, {}, {}, std::byte{7}, {}, {}, {}},
      {{}, {}, {}, {}, std::byte{99}, {}, {}, {}},
      {{}, {}, {}, {}, std::byte{2}, {}, {}, {}},
      {{}, {}, {}, {}, std::byte{4}, {}, {}, {}},
      {{}, {}, {}, {}, std::byte{10}, {}, {}, {}},
      {std::byte{2}, {}, {}, {}, std::byte{1}, {}, {}, {}, std::byte{1}, std::byte{2}},
  };
  for (const auto& frame : bad) {
    RawSocket socket(server->port());
    pass_handshake(socket, server.secret);
    socket.send(frame);
    EXPECT_TRUE(socket.await_end());
  }
  expect_job_works(clients);
}

TEST(Stranger, AMemberThatBreaksTheProtocolIsLostWithThatCause) {
  TestServer server(2);
  TestClient good;
  ASSERT_TRUE(good.connect(server).ok());
  RawSocket bad(server->port());
  pass_handshake(bad, server.secret);
  std::vector<std::byte> join;
  append_frame(join, FrameType::kJoin, encode(join_request(1, 2)));
  bad.send(join);
  ASSERT_TRUE(good->join(join_request(0, 2)));
  bad.send(join);
  const std::string line = good.log.await("lost 1");
  EXPECT_NE(line.find("rank 1 (host node-1, process 1001) broke the protocol"), std::string::npos) << line;
  EXPECT_TRUE(bad.await_end());
}

TEST(Stranger, AnAuthenticatedPeerThatAnswersNoHeartbeatIsDropped) {
  TestServer server(1, [](ServerOptions& options) {
    options.heartbeat_interval = 50ms;
    options.heartbeat_timeout = 400ms;
  });
  Clients clients = formed(server, 1);
  RawSocket mute(server->port());
  pass_handshake(mute, server.secret);
  EXPECT_TRUE(mute.await_end());
  expect_job_works(clients);
}

class NoEvents final : public ServerHandler {
  void on_epoch(const Membership& /*membership*/) override {}
  void on_message(Rank /*from*/, ConstBytes /*message*/) override {}
  void on_left(Rank /*rank*/) override {}
  void on_lost(Rank /*rank*/, const Status& /*cause*/) override {}
  void on_epoch_end() override {}
};

Status start_error(const std::function<void(ServerOptions&)>& change) {
  AsioLoop loop("test");
  NoEvents handler;
  ServerOptions options;
  options.secret = Secret::generate().value();
  options.size = 1;
  change(options);
  const auto server = Server::start(loop, options, handler);
  return server.status();
}

TEST(Listening, APortInUseAndAnExhaustedRangeAreNamed) {
  TestServer holder(1);
  const std::uint16_t port = holder->port();
  const Status one = start_error([&](ServerOptions& options) { options.port_first = options.port_last = port; });
  EXPECT_EQ(one.code(), Code::kUnavailable);
  EXPECT_NE(one.text().find("port " + std::to_string(port) + " of 127.0.0.1"), std::string::npos) << one.text();
  EXPECT_NE(one.text().find("in use"), std::string::npos) << one.text();
}

TEST(Listening, TheFirstFreePortOfARangeIsTaken) {
  TestServer holder(1);
  const std::uint16_t port = holder->port();
  TestServer second(1, [&](ServerOptions& options) {
    options.port_first = port;
    options.port_last = static_cast<std::uint16_t>(std::min(65535, port + 50));
  });
  EXPECT_GT(second->port(), port);
  EXPECT_LE(second->port(), port + 50);
}

TEST(Listening, BadOptionsAreRefused) {
  EXPECT_EQ(start_error([](ServerOptions& o) { o.size = 0; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(start_error([](ServerOptions& o) { o.secret = Secret(); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(start_error([](ServerOptions& o) { o.bind_address = "no-such-host"; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(start_error([](ServerOptions& o) { o.bind_address = "192.0.2.1"; }).code(), Code::kUnavailable);
  EXPECT_EQ(start_error([](ServerOptions& o) { o.heartbeat_timeout = o.heartbeat_interval; }).code(),
            Code::kInvalidArgument);
}

TEST(Listening, AServerOnAllAddressesServesBothFamilies) {
  if (!start_error([](ServerOptions& options) { options.bind_address = "::1"; }).ok()) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  TestServer server(2, [](ServerOptions& options) { options.bind_address = "::"; });
  Clients clients;
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    clients.push_back(std::make_unique<TestClient>());
    const Status status =
        clients.back()->connect(std::string(host) + ":" + std::to_string(server->port()), server.secret);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_EQ((*clients[0])->local_address(), "127.0.0.1");
  EXPECT_EQ((*clients[1])->local_address(), "::1");
  for (const auto& result : join_all(clients, {join_request(0, 2), join_request(1, 2)})) {
    EXPECT_TRUE(result) << result.status().to_string();
  }
}

TEST(Listening, LocalhostIsAnAddressAndWhatDialsItFindsIt) {
  TestServer server(1, [](ServerOptions& options) { options.bind_address = "localhost"; });
  TestClient client;
  const Status status = client.connect("localhost:" + std::to_string(server->port()), server.secret);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

// Makes socket(AF_INET6) fail as on a host without IPv6. Call it in a process of its own: the filter is permanent.
void forbid_ipv6() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::_Exit(77);
  }
}

TEST(ListeningDeathTest, AllAddressesAreThoseOfIpv4WhereThereIsNoIpv6) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        forbid_ipv6();
        bool connected = false;
        {
          TestServer server(1, [](ServerOptions& options) { options.bind_address = "::"; });
          TestClient client;
          connected = client.connect(server).ok();
        }
        std::_Exit(connected ? 77 : 1);
      },
      testing::ExitedWithCode(77), "");
}

}  // namespace
}  // namespace sirtaki::rendezvous
