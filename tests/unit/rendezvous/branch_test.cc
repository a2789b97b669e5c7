// Tests of branches: messages both ways, ends with and without a leave, and strangers at the port.
#include "runtime/rendezvous/branch.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/rendezvous/link/frame.h"
#include "tests/unit/rendezvous/world.h"

namespace sirtaki::rendezvous {
namespace {

using namespace std::chrono_literals;

// One end of the tests, which records the events of its branches.
class End final : public BranchHandler, public BranchPortHandler {
 public:
  explicit End(const std::string& thread) : loop(std::make_unique<AsioLoop>(thread)) {}
  ~End() override {
    loop->run_sync([this] {
      branch.reset();
      port.reset();
    });
  }

  Status listen(const Secret& secret) {
    BranchPortOptions options;
    options.bind_address = "127.0.0.1";
    options.secret = secret;
    options.handshake_timeout = 5s;
    options.silence_timeout = 5s;
    options.children = 2;
    SRT_ASSIGN(port, BranchPort::open(*loop, std::move(options), *this));
    return {};
  }
  Status dial_to(std::uint16_t where, const Secret& secret, Purpose purpose, std::vector<std::byte> hello) {
    DialOptions options;
    options.addresses = {address_of(where)};
    options.who = "the relay";
    options.purpose = purpose;
    options.hello = std::move(hello);
    options.secret = secret;
    options.connect_timeout = 300ms;
    options.handshake_timeout = 5s;
    MoveFunction<bool()> never;
    SRT_ASSIGN(Dialed dialed, dial(*loop, options, never));
    loop->run_sync([&] {
      branch = Branch::adopt(*loop, std::move(dialed)).value();
      branch->start(*this);
    });
    return {};
  }
  void say(const std::string& text) {
    loop->run_sync([&] { branch->send(bytes_of(text)); });
  }
  void leave() {
    loop->run_sync([&] { branch->leave(); });
  }
  void drop() {
    loop->run_sync([&] { branch.reset(); });
  }

  void on_branch(const BranchHello& hello, std::unique_ptr<Branch> guest) override {
    branch = std::move(guest);
    log.add("branch of rank " + std::to_string(hello.from) + " to relay " + std::to_string(hello.relay) + " epoch " +
            std::to_string(hello.epoch.value));
    branch->start(*this);
  }
  void on_branch_warning(const std::string& line) override { log.add("warning " + line); }
  void on_tree(Branch& /*branch*/, ConstBytes message) override { log.add("message " + text_of(message)); }
  void on_leave(Branch& /*branch*/) override { log.add("leave"); }
  void on_leave_ok(Branch& /*branch*/) override { log.add("leave ok"); }
  void on_end(Branch& /*branch*/, const Status& cause) override { log.add("end " + cause.to_string()); }

  EventLog log;
  std::unique_ptr<AsioLoop> loop;
  std::unique_ptr<BranchPort> port;
  std::unique_ptr<Branch> branch;
};

class BranchTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(above_.listen(secret_).ok()); }
  void connect() {
    const Status status = below_.dial_to(above_.port->port(), secret_, Purpose::kBranch, encode(kHello));
    ASSERT_TRUE(status.ok()) << status.to_string();
    above_.log.await("branch of rank 5 to relay 2 epoch 7");
  }
  void expect_works() {
    below_.say("up");
    above_.log.await("message up");
    above_.say("down");
    below_.log.await("message down");
  }

  inline static const BranchHello kHello{Epoch(7), 5, 2};
  Secret secret_ = Secret::generate().value();
  End above_{"above"};
  End below_{"below"};
};

TEST_F(BranchTest, MessagesTravelBothWaysAndALeaveIsAnsweredBehindThem) {
  connect();
  expect_works();
  below_.say("last");
  below_.leave();
  below_.log.await("leave ok");
  above_.log.await("leave");
  EXPECT_EQ(above_.log.lines().back(), "leave");
  EXPECT_EQ(above_.log.count("message last"), 1);
  EXPECT_EQ(below_.log.count("end"), 0);
}

TEST_F(BranchTest, TheUpperEndMayLeaveToo) {
  connect();
  above_.leave();
  below_.log.await("leave");
  above_.log.await("leave ok");
}

TEST_F(BranchTest, AnEndWithoutALeaveIsTold) {
  connect();
  below_.drop();
  EXPECT_NE(above_.log.await("end").find("closed"), std::string::npos);
}

TEST_F(BranchTest, StrangersAreTurnedAwayAndCounted) {
  connect();
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 5; ++i) {
    RawSocket socket(above_.port->port());
    std::vector<std::byte> junk(random() % 2000 + 1);
    for (auto& byte : junk) {
      byte = static_cast<std::byte>(random());
    }
    socket.send(junk);
    EXPECT_TRUE(socket.await_end());
  }
  // Refused are the secret of another job, a control connection, and an empty hello.
  End other("other");
  EXPECT_FALSE(other.dial_to(above_.port->port(), Secret::generate().value(), Purpose::kBranch, encode(kHello)).ok());
  EXPECT_FALSE(other.dial_to(above_.port->port(), secret_, Purpose::kControl, encode(kHello)).ok());
  ASSERT_TRUE(other.dial_to(above_.port->port(), secret_, Purpose::kBranch, {}).ok());
  other.log.await("end");
  above_.log.await("warning refused a connection from 127.0.0.1:");
  EXPECT_EQ(above_.log.count("branch of rank"), 1);
  expect_works();
  EXPECT_GE(above_.port->strangers(), 7U);
}

TEST_F(BranchTest, AFrameThatBelongsToTheServerEndsIt) {
  auto handshake = Handshake::initiator(secret_, Purpose::kBranch, encode(kHello));
  RawSocket socket(above_.port->port());
  socket.send(handshake.take_output());
  while (!handshake.done()) {
    ASSERT_TRUE(handshake.feed(socket.read(1)));
  }
  socket.send(handshake.take_output());
  std::vector<std::byte> frame;
  append_frame(frame, FrameType::kPing, std::vector<std::byte>(8));
  socket.send(frame);
  EXPECT_TRUE(socket.await_end());
  EXPECT_NE(above_.log.await("end").find("type 9"), std::string::npos);
}

TEST_F(BranchTest, ARelayThatIsNotThereIsAClearError) {
  const std::uint16_t port = above_.port->port();
  above_.loop->run_sync([this] { above_.port.reset(); });
  const Status status = below_.dial_to(port, secret_, Purpose::kBranch, encode(kHello));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.text().find("cannot reach the relay at 127.0.0.1:"), std::string::npos) << status.text();
}

TEST(BranchHello, WireFormRefusesWhatIsCutShort) {
  const BranchHello hello{Epoch(3), 4, 1};
  const auto bytes = encode(hello);
  EXPECT_EQ(*decode_branch_hello(bytes), hello);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_branch_hello(ConstBytes(bytes).first(cut)).ok());
  }
}

}  // namespace
}  // namespace sirtaki::rendezvous
