// ControlPlane over a tree of relays, with a coordinator and a relay that the test controls.
#include "runtime/engine/epoch/control_plane.h"

#include <gtest/gtest.h>

#include "runtime/control/bundle.h"
#include "runtime/rendezvous/branch.h"
#include "tests/unit/rendezvous/world.h"

namespace sirtaki::engine {
namespace {

using namespace std::chrono_literals;
using control::RankSet;
using rendezvous::Branch;

// The relay of rank 0, which sends only when the test tells it to.
class SlowRelay final : public rendezvous::BranchPortHandler, public rendezvous::BranchHandler {
 public:
  explicit SlowRelay(const rendezvous::Secret& secret) {
    rendezvous::BranchPortOptions options;
    options.bind_address = "127.0.0.1";
    options.secret = secret;
    options.silence_timeout = 5s;
    options.children = 2;
    port_ = rendezvous::BranchPort::open(loop_, std::move(options), *this).value();
  }
  ~SlowRelay() override {
    loop_.run_sync([this] {
      branch_.reset();
      port_.reset();
    });
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_->port()); }
  void tell(const control::Spread& spread) {
    log.await("branch");
    loop_.run_sync([&] { branch_->send(control::encode(spread)); });
  }

  void on_branch(const rendezvous::BranchHello& /*hello*/, std::unique_ptr<Branch> branch) override {
    branch_ = std::move(branch);
    branch_->start(*this);
    log.add("branch");
  }
  void on_branch_warning(const std::string& line) override { log.add(line); }
  void on_tree(Branch& /*branch*/, ConstBytes /*bytes*/) override {}
  void on_leave(Branch& /*branch*/) override {}
  void on_leave_ok(Branch& /*branch*/) override {}
  void on_end(Branch& /*branch*/, const Status& /*cause*/) override {}

  rendezvous::EventLog log;

 private:
  rendezvous::AsioLoop loop_{"relay"};
  std::unique_ptr<rendezvous::BranchPort> port_;
  std::unique_ptr<Branch> branch_;
};

rendezvous::JoinRequest request_of(Rank rank) {
  rendezvous::JoinRequest request = rendezvous::join_request(rank, 3);
  request.fanout = 2;
  return request;
}

// Rank 1 is below a relay of rank 0; rank 2 shuts down right after an agreement.
TEST(ControlPlaneTree, TheNoticeOfALeaveDoesNotOvertakeWhatComesDownASlowBranch) {
  rendezvous::TestServer server(3);
  SlowRelay relay(server.secret);
  rendezvous::TestClient rank0;
  rendezvous::TestClient rank2;
  ASSERT_TRUE(rank0.connect(server).ok());
  ASSERT_TRUE(rank2.connect(server).ok());
  rendezvous::EventLog log;
  rendezvous::AsioLoop loop("engine");
  Config config;
  auto plane = ControlPlane::connect(loop, config, server.address(), server.secret, {}).value();

  rendezvous::JoinRequest request0 = request_of(0);
  request0.relay_endpoints = {relay.address()};
  std::thread join0([&] { EXPECT_TRUE(rank0->join(request0)); });
  std::thread join2([&] { EXPECT_TRUE(rank2->join(request_of(2))); });
  const auto joined = plane->join(request_of(1));
  join0.join();
  join2.join();
  ASSERT_TRUE(joined) << joined.status().to_string();
  loop.run_sync([&] {
    ControlEvents events;
    events.message = [&](ConstBytes bytes) {
      const auto message = control::decode_coordinator_message(bytes);
      log.add(message ? "told " + std::to_string(message->index()) : message.status().to_string());
    };
    events.left = [&](Rank rank) { log.add("left " + std::to_string(rank)); };
    events.lost = [&](Rank, const Status& cause) { log.add("lost " + cause.to_string()); };
    events.disconnected = [&](const Status& cause) { log.add("disconnected " + cause.to_string()); };
    events.cut = [&](const Status& cause, bool) { log.add("cut " + cause.to_string()); };
    events.warning = [&](const std::string& line) { log.add(line); };
    plane->begin(std::move(events));
  });

  server.loop().run_sync([&] { server->announce_leave(2); });
  rank0.log.await("left 2");
  // This message follows the notice on the own connection of rank 1.
  server.loop().run_sync([&] { server->send(1, control::encode(control::JobFailed{Status(Code::kAborted, "")})); });
  log.await("told 7");
  relay.tell({{RankSet::of(1), control::AllJoined{2, {}}}, {RankSet::of(1), control::RanksLeft{{2}}}});
  log.await("told 12");
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"told 7", "told 11", "told 12"}));

  rank2->leave(5s);
  rank0->leave(5s);
  plane->leave();
  plane->relay_on();
}

}  // namespace
}  // namespace sirtaki::engine
