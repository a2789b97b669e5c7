// Tests of the port at which hosts join a job: who comes in, and who does not.
#include "launcher/join/join_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <mutex>
#include <random>

#include "runtime/rendezvous/auth/handshake.h"
#include "runtime/rendezvous/link/dial.h"
#include "tests/unit/rendezvous/world.h"

namespace sirtaki::launcher {
namespace {

using rendezvous::Handshake;
using rendezvous::Purpose;
using rendezvous::RawSocket;
using rendezvous::Secret;
using rendezvous::StreamCipher;
using namespace std::chrono_literals;

// A port, and what it has reported.
class Port {
 public:
  Port() {
    JoinPort::Events events;
    events.on_host = [this](const std::shared_ptr<JoiningHost>& host) {
      const std::lock_guard lock(mutex_);
      hosts_.push_back(host);
      changed_.notify_all();
    };
    events.on_warning = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(text);
      changed_.notify_all();
    };
    port_ = JoinPort::open(0, secret, std::move(events)).value();
  }
  std::uint16_t number() const { return port_->port(); }
  std::shared_ptr<JoiningHost> await_host() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 20s, [this] { return !hosts_.empty(); }));
    return hosts_.empty() ? nullptr : hosts_.back();
  }
  std::string await_warning() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 20s, [this] { return !warnings_.empty(); }));
    return warnings_.empty() ? "" : warnings_.back();
  }
  std::size_t hosts() {
    const std::lock_guard lock(mutex_);
    return hosts_.size();
  }

  const Secret secret = Secret::generate().value();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<JoiningHost>> hosts_;
  std::vector<std::string> warnings_;
  std::unique_ptr<JoinPort> port_;
};

Result<rendezvous::Dialed> dial(std::uint16_t port, const Secret& secret, Purpose purpose = Purpose::kAgent) {
  rendezvous::AsioLoop loop("dial");
  rendezvous::DialOptions options;
  options.addresses = {"127.0.0.1:" + std::to_string(port)};
  options.purpose = purpose;
  options.hello = encode(HostOffer{"node", 3});
  options.secret = secret;
  options.connect_timeout = purpose == Purpose::kAgent ? 20s : 200ms;
  options.handshake_timeout = 20s;
  MoveFunction<bool()> never;
  return rendezvous::dial(loop, options, never);
}

// Proves the secret over a raw socket; returns all bytes that it has sent.
std::vector<std::byte> speak(RawSocket& socket, const Secret& secret) {
  auto handshake = Handshake::initiator(secret, Purpose::kAgent, encode(HostOffer{"node", 3}));
  std::vector<std::byte> said = handshake.take_output();
  socket.send(said);
  while (!handshake.done()) {
    const auto piece = socket.read(1);
    if (piece.empty() || !handshake.feed(piece)) {
      ADD_FAILURE() << "the port does not answer";
      return said;
    }
  }
  const auto proof = handshake.take_output();
  socket.send(proof);
  said.insert(said.end(), proof.begin(), proof.end());
  return said;
}

TEST(JoinPort, AHostWithTheSecretComesInAndSpeaksOverAnEncryptedChannel) {
  Port port;
  auto dialed = dial(port.number(), port.secret);
  ASSERT_TRUE(dialed) << dialed.status().to_string();
  const auto host = port.await_host();
  ASSERT_NE(host, nullptr);
  EXPECT_EQ(host->offer.name, "node");
  EXPECT_EQ(host->offer.slots, 3);
  EXPECT_EQ(host->peer, "127.0.0.1");
  EXPECT_EQ(host->here, "127.0.0.1");

  unsigned int limit = 1;
  socklen_t size = sizeof(limit);
  ASSERT_EQ(getsockopt(host->ends.in.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size), 0);
  EXPECT_EQ(limit, 0U);  // a side that is stopped does not read

  boost::asio::io_context io;
  std::string heard;
  Status end(Code::kBug, "no end");
  FrameChannel there(io,
                     socket_ends(FileDescriptor(dialed->fd.release()),
                                 StreamCipher(dialed->session, StreamCipher::Side::kInitiator), dialed->following)
                         .value(),
                     false,
                     {[&](const Frame& frame) { heard = decode_tell(frame.payload)->text; },
                      [&](const Status& status) { end = status; }});
  FrameChannel here(io, std::move(host->ends), true,
                    {[&](const Frame& frame) {
                       EXPECT_EQ(frame.type, FrameType::kLeave);
                       here.send(FrameType::kTell, encode(Tell{"bye", 0}));
                       here.finish_writing();
                     },
                     [](const Status&) {}});
  there.start();
  here.start();
  there.send_raw(kPreamble);
  there.send(FrameType::kLeave, {});
  while (heard.empty() || !end.ok()) {
    ASSERT_GT(io.run_one_for(20s), 0U);
  }
  EXPECT_EQ(heard, "bye");
}

TEST(JoinPort, ASocketWithoutASecondDescriptorIsAnError) {
  Port port;
  const auto dialed = dial(port.number(), port.secret);
  ASSERT_TRUE(dialed) << dialed.status().to_string();
  const auto ends = socket_ends(FileDescriptor(), StreamCipher(dialed->session, StreamCipher::Side::kInitiator), {});
  EXPECT_EQ(ends.status().code(), Code::kUnavailable);
}

TEST(JoinPort, AHostWithAnotherSecretLearnsWhatToDo) {
  Port port;
  const auto refused = dial(port.number(), Secret::generate().value());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.status().text().find("--secret-file"), std::string::npos) << refused.status().to_string();
  EXPECT_NE(port.await_warning().find("refused a connection from 127.0.0.1"), std::string::npos);
  EXPECT_EQ(port.hosts(), 0U);
}

TEST(JoinPort, ARankIsNoHostThatJoins) {
  Port port;
  EXPECT_FALSE(dial(port.number(), port.secret, Purpose::kControl));
  EXPECT_EQ(port.hosts(), 0U);
}

TEST(JoinPort, ARecordedHandshakeIsRefused) {
  Port port;
  RawSocket first(port.number());
  const std::vector<std::byte> recorded = speak(first, port.secret);
  ASSERT_NE(port.await_host(), nullptr);
  RawSocket second(port.number());
  second.send(recorded);
  EXPECT_TRUE(second.await_end());
  EXPECT_EQ(port.hosts(), 1U);
}

TEST(JoinPort, StrangersDoNotKeepAHostOut) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Port port;
  std::vector<std::unique_ptr<RawSocket>> silent;  // more than the port keeps at one time
  for (int i = 0; i < 80; ++i) {
    silent.push_back(std::make_unique<RawSocket>(port.number()));
  }
  std::vector<std::byte> junk(1 + random() % 4000);
  for (auto& byte : junk) {
    byte = static_cast<std::byte>(random());
  }
  RawSocket loud(port.number());
  loud.send(junk);
  EXPECT_TRUE(loud.await_end());
  EXPECT_TRUE(silent.front()->await_end());
  const auto dialed = dial(port.number(), port.secret);
  EXPECT_TRUE(dialed) << dialed.status().to_string();
  EXPECT_NE(port.await_host(), nullptr);
}

TEST(JoinPort, AnOfferThatIsNoneIsRefused) {
  Port port;
  rendezvous::AsioLoop loop("dial");
  rendezvous::DialOptions options;
  options.addresses = {"127.0.0.1:" + std::to_string(port.number())};
  options.purpose = Purpose::kAgent;
  options.hello = std::vector<std::byte>(3);
  options.secret = port.secret;
  options.connect_timeout = options.handshake_timeout = 20s;
  MoveFunction<bool()> never;
  EXPECT_TRUE(rendezvous::dial(loop, options, never));
  EXPECT_NE(port.await_warning().find("refused the host at 127.0.0.1"), std::string::npos);
  EXPECT_EQ(port.hosts(), 0U);
}

}  // namespace
}  // namespace sirtaki::launcher
