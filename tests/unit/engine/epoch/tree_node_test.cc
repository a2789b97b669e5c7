// TreeNode between a fake coordinator and fake ranks.
#include "runtime/engine/epoch/tree_node.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/unit/rendezvous/world.h"

namespace sirtaki::engine {
namespace {

using namespace std::chrono_literals;
using control::Announce;
using control::Bundle;
using control::RankSet;
using rendezvous::Branch;
using rendezvous::BranchHello;
using rendezvous::EventLog;

constexpr Duration kVerdict = 200ms;

Announce announce(const std::string& name) {
  return {name, 0, {}};
}

std::string text_of(const Bundle& bundle) {
  std::string text;
  for (const control::SourcedMessage& said : bundle) {
    const auto* named = std::get_if<Announce>(&said.message);
    text += said.ranks.to_string() + (named != nullptr ? " announce " + named->name : " leave") + "; ";
  }
  return text;
}

// A fake rank at the other end of a branch.
class Fake final : public rendezvous::BranchHandler, public rendezvous::BranchPortHandler {
 public:
  ~Fake() override {
    loop.run_sync([this] {
      branch.reset();
      port.reset();
    });
  }
  void dial(const std::string& where, const rendezvous::Secret& secret, const BranchHello& hello) {
    rendezvous::DialOptions options;
    options.addresses = {where};
    options.purpose = rendezvous::Purpose::kBranch;
    options.hello = encode(hello);
    options.secret = secret;
    options.connect_timeout = options.handshake_timeout = options.silence_timeout = 5s;
    MoveFunction<bool()> never;
    auto dialed = rendezvous::dial(loop, options, never);
    ASSERT_TRUE(dialed.ok()) << dialed.status().to_string();
    loop.run_sync([&] {
      branch = Branch::adopt(loop, std::move(*dialed)).value();
      branch->start(*this);
    });
  }
  void listen(const rendezvous::Secret& secret) {
    rendezvous::BranchPortOptions options;
    options.bind_address = "127.0.0.1";
    options.secret = secret;
    options.silence_timeout = 5s;
    options.children = 2;
    port = rendezvous::BranchPort::open(loop, std::move(options), *this).value();
  }
  void say(const Bundle& bundle) {
    loop.run_sync([&] { branch->send(control::encode(bundle)); });
  }
  void leave() {
    loop.run_sync([&] { branch->leave(); });
  }
  void drop() {
    loop.run_sync([&] { branch.reset(); });
  }

  void on_branch(const BranchHello& hello, std::unique_ptr<Branch> guest) override {
    branch = std::move(guest);
    branch->start(*this);
    log.add("branch of rank " + std::to_string(hello.from));
  }
  void on_branch_warning(const std::string& line) override { log.add(line); }
  void on_tree(Branch& /*branch*/, ConstBytes bytes) override {
    if (port) {
      log.add("up " + text_of(control::decode_bundle(bytes, 64).value()));
    } else {
      log.add("down " + std::to_string(control::decode_spread(bytes, 64).value().size()));
    }
  }
  void on_leave(Branch& /*branch*/) override { log.add("leave"); }
  void on_leave_ok(Branch& /*branch*/) override { log.add("left"); }
  void on_end(Branch& /*branch*/, const Status& /*cause*/) override { log.add("end"); }

  EventLog log;
  rendezvous::AsioLoop loop{"played"};
  std::unique_ptr<rendezvous::BranchPort> port;
  std::unique_ptr<Branch> branch;
};

// Three ranks with a fan-out of two: rank 0 runs relay 0 for itself and rank 1, rank 2 runs relay 1 for itself.
class TreeNodeTest : public testing::Test {
 protected:
  void open(Rank rank, int size = 3) {
    TreeOptions options;
    options.rank = rank;
    options.size = size;
    options.fanout = 2;
    options.relay = relay_;
    options.port.bind_address = "127.0.0.1";
    options.port.secret = secret_;
    options.port.silence_timeout = 5s;
    options.connect_timeout = 5s;
    options.verdict_timeout = kVerdict;
    TreeEvents events;
    events.told = [this](ConstBytes) { log_.add("told"); };
    events.to_hub = [this](const std::vector<std::byte>& bytes) {
      log_.add("hub " + text_of(control::decode_bundle(bytes, 3).value()));
    };
    events.plain = [this](const control::MemberMessage& message) {
      const auto* broken = std::get_if<control::JobBroken>(&message);
      log_.add(broken != nullptr ? "broken " + broken->status.to_string() : "plain");
    };
    events.cut = [this](const Status& cause, bool needed) {
      log_.add((needed ? "needed " : "cut ") + cause.to_string());
    };
    events.left = [this](Rank gone) { log_.add("gone " + std::to_string(gone)); };
    events.warning = [this](const std::string& line) { log_.add(line); };
    node_ = TreeNode::open(loop_, std::move(options), std::move(events)).value();
    ASSERT_NE(node_, nullptr);
  }
  // Opens rank 0 with rank 1 below it.
  void open_with_child() {
    open(0);
    below_.dial(node_->endpoints({"127.0.0.1:1"}).front(), secret_, {Epoch(4), 1, 0});
    rendezvous::Membership membership;
    membership.epoch = Epoch(4);
    membership.members.resize(3);
    ASSERT_TRUE(node_->connect(membership, {}).ok());
  }
  // Opens rank 1 below rank 0.
  void open_with_parent() {
    open(1);
    EXPECT_TRUE(node_->endpoints({"127.0.0.1:1"}).empty());
    above_.listen(secret_);
    rendezvous::Membership membership;
    membership.epoch = Epoch(4);
    membership.members.resize(3);
    membership.members[0].relay_endpoints = {"127.0.0.1:" + std::to_string(above_.port->port())};
    const Status status = node_->connect(membership, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    above_.log.await("branch of rank 1");
  }
  void say(const control::MemberMessage& message, Rank rank) {
    loop_.run_sync([&] { node_->say({{RankSet::of(rank), message}}); });
  }
  void left(Rank rank) {
    loop_.run_sync([&] { node_->on_left(rank); });
  }
  void leave(Duration grace) {
    loop_.run_sync([&] { node_->leave(grace, [this] { log_.add("done"); }); });
  }
  // Runs the loop for longer than the limit after which a lost connection is reported.
  void wait_out_the_verdict() {
    loop_.run_sync([this] { loop_.after(2 * kVerdict, [this] { log_.add("time is over"); }); });
    log_.await("time is over");
  }
  void TearDown() override {
    loop_.run_sync([this] { node_.reset(); });
  }

  control::RelayOptions relay_;
  rendezvous::Secret secret_ = rendezvous::Secret::generate().value();
  EventLog log_;
  rendezvous::AsioLoop loop_{"control"};
  Fake above_;
  Fake below_;
  std::unique_ptr<TreeNode> node_;
};

TEST_F(TreeNodeTest, SmallJobsHaveNone) {
  TreeOptions options;
  options.size = 32;
  options.fanout = 32;
  EXPECT_EQ(TreeNode::open(loop_, options, {}).value(), nullptr);
  options.size = 64;
  options.fanout = 0;
  EXPECT_EQ(TreeNode::open(loop_, options, {}).value(), nullptr);
}

TEST_F(TreeNodeTest, WhatBothSayIsOneBundleAndTheAnswerReachesBoth) {
  relay_.linger = relay_.longest = 10min;  // the announcement of one rank waits for the other in any case
  open_with_child();
  below_.say({{RankSet::of(1), announce("a")}});
  say(announce("a"), 0);
  log_.await("hub ranks 0, 1 announce a");
  loop_.run_sync([this] {
    node_->on_spread(control::encode(control::Spread{{RankSet::range(0, 3), control::Query{}}}));
  });
  log_.await("told");
  below_.log.await("down 1");
}

TEST_F(TreeNodeTest, AChildSpeaksForItselfOnly) {
  open_with_child();
  below_.say({{RankSet::of(2), announce("forged")}, {RankSet::of(1), announce("own")}});
  log_.await("hub rank 1 announce own");
  EXPECT_EQ(log_.count("forged"), 0);
}

TEST_F(TreeNodeTest, AConnectionWithoutAPlaceIsRefused) {
  open_with_child();
  Fake other;
  other.dial(node_->endpoints({"127.0.0.1:1"}).front(), secret_, {Epoch(4), 1, 0});
  other.log.await("end");
  log_.await("refused a connection of rank 1 in epoch 4");
}

TEST_F(TreeNodeTest, AChildThatVanishesWhileItsRankLivesEndsTheJob) {
  open_with_child();
  below_.drop();
  const std::string text = log_.await("broken");
  EXPECT_NE(text.find("agreements of rank 1 go to rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("control.fanout"), std::string::npos) << text;
}

TEST_F(TreeNodeTest, WhatAnEarlierEpochLeftBehindTakesNoPlaceOfAChild) {
  open(0);
  const std::string where = node_->endpoints({"127.0.0.1:1"}).front();
  std::array<Fake, 3> stale;
  for (std::size_t i = 0; i < stale.size(); ++i) {
    stale[i].dial(where, secret_, {Epoch(static_cast<std::uint32_t>(i) + 1), 1, 0});
  }
  const auto await_refused = [this](int count) {
    const TimePoint deadline = loop_.now() + 20s;
    while (log_.count("more came than there are places") < count && loop_.now() < deadline) {
      loop_.run_sync([] {});
    }
    EXPECT_EQ(log_.count("more came than there are places"), count);
  };
  await_refused(1);
  below_.dial(where, secret_, {Epoch(4), 1, 0});
  await_refused(2);
  Fake again;  // the first connection counts as lost by then
  again.dial(where, secret_, {Epoch(4), 1, 0});
  below_.log.await("end");
  rendezvous::Membership membership;
  membership.epoch = Epoch(4);
  membership.members.resize(3);
  ASSERT_TRUE(node_->connect(membership, {}).ok());
  again.say({{RankSet::of(1), announce("a")}});
  log_.await("hub rank 1 announce a");
}

TEST_F(TreeNodeTest, ARelayThatIsLeavingTellsThoseBelowWhenTheOneAboveIsLost) {
  open(2, 7);  // runs relay 1 for itself and rank 3, below a relay of rank 1 for ranks 0 to 3
  above_.listen(secret_);
  below_.dial(node_->endpoints({"127.0.0.1:1"}).front(), secret_, {Epoch(4), 3, 1});
  rendezvous::Membership membership;
  membership.epoch = Epoch(4);
  membership.members.resize(7);
  membership.members[1].relay_endpoints = {"127.0.0.1:" + std::to_string(above_.port->port())};
  const Status status = node_->connect(membership, {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  above_.log.await("branch of rank 2");
  below_.say({{RankSet::of(3), announce("a")}});
  above_.log.await("up rank 3 announce a");
  leave(60s);
  above_.drop();
  below_.log.await("leave");
  log_.await("done");
  EXPECT_EQ(log_.count("broken"), 0);
}

TEST_F(TreeNodeTest, AParentThatVanishesWhileItsRankLivesEndsTheJob) {
  open_with_parent();
  above_.drop();
  EXPECT_NE(log_.await("broken").find("agreements of rank 1 go to rank 0"), std::string::npos);
}

TEST_F(TreeNodeTest, WhoseRankHasGoneIsNoError) {
  open_with_child();
  left(1);
  below_.drop();
  wait_out_the_verdict();
  EXPECT_EQ(log_.count("broken"), 0);
}

TEST_F(TreeNodeTest, InAJobThatIsOverNothingIsTold) {
  open_with_parent();
  loop_.run_sync([this] { node_->abandon(); });
  above_.drop();
  wait_out_the_verdict();
  EXPECT_EQ(log_.count("broken"), 0);
  leave(5s);
  log_.await("done");
}

TEST_F(TreeNodeTest, ARelayWaitsForThoseBelow) {
  open_with_child();
  say(control::Leaving{}, 0);
  leave(20s);
  below_.say({{RankSet::of(1), announce("a")}});
  log_.await("rank 1 announce a");
  EXPECT_EQ(log_.count("done"), 0);
  below_.say({{RankSet::of(1), control::Leaving{}}});
  below_.leave();
  below_.log.await("left");
  log_.await("done");
  EXPECT_GE(log_.count("rank 1 leave"), 1);
}

TEST_F(TreeNodeTest, ButNotForLongerThanTheGrace) {
  open_with_child();
  leave(50ms);
  log_.await("done");
  below_.log.await("leave");
}

TEST_F(TreeNodeTest, ARankWhoseRelayHasLeftLearnsSoWhenItNeedsIt) {
  open_with_parent();
  left(2);
  EXPECT_EQ(log_.count("gone"), 0);  // the tree reports it, behind earlier agreements
  above_.leave();
  EXPECT_NE(log_.await("cut").find("rank 0, over which this rank speaks"), std::string::npos);
  log_.await("gone 2");
  left(0);
  log_.await("gone 0");
  say(control::Waiting{}, 1);
  EXPECT_EQ(log_.count("needed"), 0);
  say(announce("a"), 1);
  log_.await("needed");
  // The last message of the rank takes its own connection.
  say(control::Leaving{}, 1);
  leave(20s);
  log_.await("done");
  EXPECT_EQ(log_.count("plain"), 1);
}

TEST_F(TreeNodeTest, ALeaveIsOverWhenTheRelayHasTheLastWord) {
  open_with_parent();
  say(control::Leaving{}, 1);
  leave(20s);
  log_.await("done");
  above_.log.await("leave");
  EXPECT_EQ(above_.log.count("up rank 1 leave"), 1);
  EXPECT_EQ(log_.count("plain"), 0);
}

TEST_F(TreeNodeTest, ARankThatHasNothingToSayStillSaysThatItLeaves) {
  open_with_parent();
  leave(20s);
  log_.await("done");
  EXPECT_EQ(above_.log.count("up rank 1 leave"), 1);
}

TEST_F(TreeNodeTest, AParentWithoutAnAddressIsAClearError) {
  open(1);
  rendezvous::Membership membership;
  membership.members.resize(3);
  membership.members[0].hostname = "node-a";
  const Status status = node_->connect(membership, {});
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.text().find("rank 0 (host node-a)"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace sirtaki::engine
