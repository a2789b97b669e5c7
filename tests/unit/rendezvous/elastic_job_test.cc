// Tests of the server in an elastic job: connections over several epochs, which the handler forms and ends.
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <map>

#include "tests/unit/rendezvous/world.h"

namespace sirtaki::rendezvous {
namespace {

// Records what a hub would decide about; the test decides.
class ElasticServer final : public ServerHandler {
 public:
  explicit ElasticServer(bool grows = false)
      : loop_("test-server", [this](const Status& status) { log.add(status.to_string()); }) {
    secret = Secret::generate().value();
    ServerOptions options;
    options.secret = secret;
    options.size = 3;
    options.elastic = true;
    options.grows = grows;
    options.heartbeat_interval = std::chrono::milliseconds(50);
    options.heartbeat_timeout = std::chrono::seconds(10);
    server_ = Server::start(loop_, options, *this).value();
  }

  std::string address() { return address_of(server_->port()); }
  // Forms an epoch of the peers that were last seen in these slots.
  void form(std::uint32_t epoch, const std::vector<Rank>& slots) {
    loop_.run_sync([&] {
      std::vector<PeerId> chosen;
      std::vector<std::vector<std::byte>> notices;
      for (const Rank slot : slots) {
        chosen.push_back(peers_.at(slot));
        notices.push_back(bytes_of("for slot " + std::to_string(slot)));
      }
      server_->form(Epoch(epoch), chosen, notices);
    });
  }
  void end_epoch(Rank lost, const Status& why) {
    loop_.run_sync([&] { server_->end_epoch(lost, why); });
  }
  void dismiss(Rank slot, const Status& why) {
    loop_.run_sync([&] { server_->dismiss(peers_.at(slot), why); });
  }
  void notify(Rank slot, const std::string& text) {
    loop_.run_sync([&] { server_->notify(peers_.at(slot), bytes_of(text)); });
  }
  void send(Rank to, const std::string& text) {
    loop_.run_sync([&] { server_->send(to, bytes_of(text)); });
  }
  void report_exit(Rank slot, const std::string& what) {
    loop_.run_sync([&] { server_->report_exit(slot, what); });
  }

  void on_epoch(const Membership& /*membership*/) override { log.add("not for elastic jobs"); }
  void on_lost(Rank /*rank*/, const Status& /*cause*/) override { log.add("not for elastic jobs"); }
  void on_message(Rank from, ConstBytes message) override {
    log.add("message " + std::to_string(from) + " " + text_of(message));
  }
  void on_left(Rank rank) override { log.add("left " + std::to_string(rank)); }
  void on_epoch_end() override { log.add("epoch end"); }
  void on_warning(const std::string& line) override { log.add("warning " + line); }
  void on_waiting(PeerId peer, Rank slot, ConstBytes report) override {
    peers_[slot] = peer;
    log.add("waiting " + std::to_string(slot) + " for the " + std::to_string(++times_[slot]) + ". time" +
            text_of(report));
  }
  void on_report(PeerId peer, ConstBytes report) override {
    log.add("report " + slot_of(peer) + " " + text_of(report));
  }
  void on_quit(PeerId peer, bool at_end) override {
    log.add("quit " + slot_of(peer) + (at_end ? " at end" : " early"));
  }
  void on_gone(PeerId peer, const Status& cause) override {
    log.add("gone " + slot_of(peer) + " " + cause.to_string());
  }
  void on_absent(Rank slot, const Status& cause) override {
    log.add("absent " + std::to_string(slot) + " " + cause.to_string());
  }

  EventLog log;
  Secret secret;

 private:
  std::string slot_of(PeerId peer) const {
    for (const auto& [slot, id] : peers_) {
      if (id == peer) {
        return std::to_string(slot);
      }
    }
    return "?";
  }

  std::map<Rank, PeerId> peers_;
  std::map<Rank, int> times_;
  AsioLoop loop_;
  std::unique_ptr<Server> server_;
};

class ElasticJobTest : public testing::Test {
 protected:
  std::future<Result<Membership>> join(Rank slot) {
    return std::async(std::launch::async, [this, slot] {
      JoinRequest request = join_request(slot, 3);
      request.report = bytes_of(", says slot " + std::to_string(slot));
      return clients_[static_cast<std::size_t>(slot)]->join(request);
    });
  }
  // Starts the first epoch of all three.
  void begin() {
    std::vector<std::future<Result<Membership>>> joined;
    for (Rank slot = 0; slot < 3; ++slot) {
      ASSERT_TRUE(clients_[static_cast<std::size_t>(slot)].connect(server_.address(), server_.secret).ok());
      joined.push_back(join(slot));
      server_.log.await("waiting " + std::to_string(slot));
    }
    server_.form(1, {0, 1, 2});
    for (auto& result : joined) {
      const auto membership = result.get();
      ASSERT_TRUE(membership) << membership.status().to_string();
      EXPECT_EQ(membership->size(), 3);
    }
  }

  ElasticServer server_;
  std::array<TestClient, 3> clients_;
};

TEST_F(ElasticJobTest, SurvivorsOfALossJoinAgainOnTheSameConnectionAndGetNewRanks) {
  begin();
  clients_[0].drop();
  const std::string gone = server_.log.await("gone 0");
  EXPECT_NE(gone.find("rank 0 (host node-0, process 1000) ended without leaving"), std::string::npos) << gone;
  server_.end_epoch(0, {Code::kRanksChanged, "gone", {0, ""}});
  clients_[1].log.await("lost 0 ranks changed: gone");
  clients_[2].log.await("lost 0 ranks changed: gone");
  clients_[1].say("too late");  // is dropped
  auto first = join(1);
  auto second = join(2);
  server_.log.await("waiting 1 for the 2. time");
  server_.log.await("waiting 2 for the 2. time, says slot 2");
  server_.form(2, {1, 2});
  ASSERT_TRUE(first.get());
  const auto membership = second.get();
  ASSERT_TRUE(membership);
  EXPECT_EQ(membership->epoch, Epoch(2));
  EXPECT_EQ(membership->members[0].hostname, "node-1");
  EXPECT_EQ(clients_[1]->rank(), 0);
  EXPECT_EQ(clients_[2]->rank(), 1);
  EXPECT_EQ(text_of(clients_[2]->notice()), "for slot 2");
  server_.send(1, "hello");
  clients_[2].log.await("message hello");
  clients_[1].say("in time");
  server_.log.await("message 0 in time");
  EXPECT_EQ(server_.log.count("too late"), 0);
  clients_[1]->leave(kPatience);
  server_.log.await("quit 1 at end");
  server_.log.await("left 0");
  clients_[2].log.await("left 0");
  clients_[2]->leave(kPatience);
  server_.log.await("epoch end");
}

TEST_F(ElasticJobTest, AProcessWithOtherOptionsIsRefusedAlone) {
  ASSERT_TRUE(clients_[0].connect(server_.address(), server_.secret).ok());
  auto first = join(0);
  server_.log.await("waiting 0");
  ASSERT_TRUE(clients_[1].connect(server_.address(), server_.secret).ok());
  auto odd = join_request(1, 3);
  odd.agreed_options = {{"sync.mode", "backward"}};
  const auto refused = clients_[1]->join(odd);
  EXPECT_EQ(refused.status().code(), Code::kMismatch);
  EXPECT_NE(refused.status().to_string().find("option sync.mode differs"), std::string::npos);
  server_.log.await("warning a process was refused");
  server_.form(1, {0});
  ASSERT_TRUE(first.get());
  ASSERT_TRUE(clients_[2].connect(server_.address(), server_.secret).ok());
  const auto late = clients_[2]->join(join_request(2, 3));
  EXPECT_EQ(late.status().code(), Code::kUnsupported) << late.status().to_string();
}

TEST_F(ElasticJobTest, MembersAndTheHandlerExchangeNoticesWithinAnEpoch) {
  begin();
  clients_[1]->report(bytes_of("has the state"));
  server_.log.await("report 1 has the state");
  server_.notify(2, "somebody waits");
  clients_[2].log.await("notice somebody waits");
  server_.end_epoch(0, {Code::kRanksChanged, "gone", {0, ""}});
  server_.notify(2, "too late");
  clients_[2].log.await("lost 0");
  EXPECT_EQ(clients_[2].log.count("too late"), 0);
}

TEST(GrowingJobTest, AProcessThatFitsMayComeWhileAnEpochRuns) {
  ElasticServer server(true);
  std::array<TestClient, 4> clients;
  std::vector<std::future<Result<Membership>>> joined;
  const auto join = [&](std::size_t client, const JoinRequest& request) {
    return std::async(std::launch::async, [&clients, client, request] { return clients[client]->join(request); });
  };
  for (Rank slot = 0; slot < 2; ++slot) {
    const auto at = static_cast<std::size_t>(slot);
    ASSERT_TRUE(clients[at].connect(server.address(), server.secret).ok());
    joined.push_back(join(at, join_request(slot, 2)));  // the ranks of the start, of three places
    server.log.await("waiting " + std::to_string(slot));
  }
  server.form(1, {0, 1});
  ASSERT_TRUE(joined[0].get() && joined[1].get());
  JoinRequest odd = join_request(2, 3);
  odd.agreed_options = {{"sync.mode", "backward"}};
  JoinRequest old = join_request(2, 3);
  old.version = "0.0.1";
  for (const auto& [request, text] : {std::pair{odd, "option sync.mode differs"},
                                      {old, "Sirtaki version differs"},
                                      {join_request(2, 4), "started for 4 ranks, but the job has 3"},
                                      {join_request(3, 3), "is out of range"},
                                      {join_request(1, 3), "two processes say they are rank 1"}}) {
    ASSERT_TRUE(clients[2].connect(server.address(), server.secret).ok());
    const auto refused = clients[2]->join(request);
    EXPECT_EQ(refused.status().code(), Code::kMismatch);
    EXPECT_NE(refused.status().to_string().find(text), std::string::npos) << refused.status().to_string();
    clients[2].drop();
  }
  ASSERT_TRUE(clients[3].connect(server.address(), server.secret).ok());
  auto late = join(3, join_request(2, 3));
  server.log.await("waiting 2");
  server.end_epoch(-1, {Code::kRanksChanged, "another rank joins", {-1, ""}});
  auto first = join(0, join_request(0, 3));
  auto second = join(1, join_request(1, 3));
  server.log.await("waiting 0 for the 2. time");
  server.log.await("waiting 1 for the 2. time");
  server.form(2, {0, 1, 2});
  ASSERT_TRUE(first.get() && second.get());
  const auto membership = late.get();
  ASSERT_TRUE(membership) << membership.status().to_string();
  EXPECT_EQ(membership->size(), 3);
  EXPECT_EQ(clients[3]->rank(), 2);
}

TEST_F(ElasticJobTest, APeerMayBeDismissedWhileItWaitsAndWhileItDoesNot) {
  begin();
  server_.end_epoch(1, {Code::kRanksChanged, "gone", {1, ""}});
  auto waiting = join(0);
  server_.log.await("waiting 0 for the 2. time");
  server_.dismiss(0, {Code::kPeerLost, "too few"});
  EXPECT_EQ(waiting.get().status().text(), "too few");
  server_.dismiss(2, {Code::kTimeout, "too slow", {2, ""}});
  clients_[2].log.await("disconnected timeout: the server gave this rank up: too slow");
  const auto again = clients_[2]->join(join_request(2, 3));
  EXPECT_EQ(again.status().text(), "the server gave this rank up: too slow");
}

TEST_F(ElasticJobTest, AReportedExitNamesTheSlotOfAProcessThatNeverCame) {
  server_.report_exit(2, "exit code 1");
  server_.log.await("absent 2 peer lost: rank 2 cannot join, its process has ended: exit code 1");
  begin();
  clients_[2].drop();
  server_.log.await("gone 2");
  auto early = join(1);  // while the epoch runs
  server_.log.await("waiting 1 for the 2. time");
  server_.dismiss(1, {Code::kPeerLost, "enough"});
  EXPECT_EQ(early.get().status().text(), "enough");
}

}  // namespace
}  // namespace sirtaki::rendezvous
