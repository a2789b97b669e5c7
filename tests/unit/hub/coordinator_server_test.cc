// Tests of the coordinator server with two or three clients: control messages, stall reports, losses, the trace file.
#include "runtime/hub/coordinator_server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <latch>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/base/config/config_load.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/control/bundle.h"
#include "runtime/control/elastic/messages.h"
#include "runtime/rendezvous/client.h"

namespace sirtaki::hub {
namespace {

const std::size_t kRanksLeft = control::CoordinatorMessage(control::RanksLeft()).index();
constexpr auto kDeadline = std::chrono::seconds(20);

// Keeps the messages that a member receives.
class Member final : public rendezvous::ClientHandler {
 public:
  // Destroys the client first: its callbacks use the other members.
  ~Member() override {
    client.reset();
    loop.reset();
  }

  void on_message(ConstBytes bytes) override {
    auto message = control::decode_coordinator_message(bytes);
    const std::lock_guard lock(mutex_);
    ASSERT_TRUE(message.ok());
    messages_.push_back(*message);
    changed_.notify_all();
  }
  void on_tree(ConstBytes bytes) override {
    auto spread = control::decode_spread(bytes, 64);
    const std::lock_guard lock(mutex_);
    ASSERT_TRUE(spread.ok());
    for (const control::TargetedMessage& item : *spread) {
      received_.push_back(item.ranks.to_string() + ": " + std::to_string(item.message.index()));
    }
    changed_.notify_all();
  }
  void on_lost(Rank rank, const Status& cause) override {
    const std::lock_guard lock(mutex_);
    lost_ = std::to_string(rank) + ": " + cause.to_string();
    changed_.notify_all();
  }
  void on_left(Rank rank) override {
    const std::lock_guard lock(mutex_);
    left_.push_back(rank);
    changed_.notify_all();
  }
  void on_disconnected(const Status& /*cause*/) override {}
  void on_notice(ConstBytes bytes) override {
    const auto notice = control::decode_roster_notice(bytes);
    const std::lock_guard lock(mutex_);
    if (const auto* announced = notice ? std::get_if<control::Announced>(&*notice) : nullptr) {
      announced_ = announced->processes;
    }
    changed_.notify_all();
  }

  template <class T>
  std::optional<T> wait_for() {
    std::unique_lock lock(mutex_);
    std::optional<T> found;
    changed_.wait_for(lock, kDeadline, [&] {
      for (const auto& message : messages_) {
        if (const T* m = std::get_if<T>(&message)) {
          found = *m;
        }
      }
      return found.has_value();
    });
    return found;
  }
  std::vector<std::string> wait_for_tree(std::size_t items) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kDeadline, [&] { return received_.size() >= items; });
    return received_;
  }
  std::vector<Rank> wait_for_leave() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kDeadline, [&] { return !left_.empty(); });
    return left_;
  }
  std::string wait_for_loss() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kDeadline, [&] { return !lost_.empty(); });
    return lost_;
  }

  // Returns whether the last number that has been announced is, or becomes, this one.
  bool wait_for_announced(std::uint32_t processes) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kDeadline, [&] { return announced_ == processes; });
  }

  std::unique_ptr<rendezvous::AsioLoop> loop = std::make_unique<rendezvous::AsioLoop>("test");
  std::unique_ptr<rendezvous::Client> client;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<control::CoordinatorMessage> messages_;
  std::vector<std::string> received_;  // messages received over the tree
  std::vector<Rank> left_;
  std::string lost_;
  std::optional<std::uint32_t> announced_;
};

class CoordinatorServerTest : public testing::Test {
 protected:
  explicit CoordinatorServerTest(int size = 2, int fanout = 0) : fanout_(fanout) {
    for (int i = 0; i < size; ++i) {
      members_.emplace_back();
    }
  }
  void SetUp() override {
    auto secret = rendezvous::Secret::generate();
    ASSERT_TRUE(secret.ok());
    secret_ = *secret;
    CoordinatorServerOptions options;
    options.server.size = size();
    options.server.secret = secret_;
    CoordinatorServerEvents events;
    events.on_lost = [this](Rank rank, const Status&) { lost_rank_ = rank; };
    choose(options, events);
    auto started = CoordinatorServer::start(std::move(options), std::move(events));
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    hub_ = std::move(*started);
    for (Member& member : members_) {
      ASSERT_NO_FATAL_FAILURE(connect(member));
    }
    AsJoined();
  }

  virtual void choose(CoordinatorServerOptions& /*options*/, CoordinatorServerEvents& /*events*/) {}

  void connect(Member& member) {
    rendezvous::ClientOptions client;
    client.server = "127.0.0.1:" + std::to_string(hub_->port());
    client.secret = secret_;
    auto connected = rendezvous::Client::connect(*member.loop, client, member, {});
    ASSERT_TRUE(connected.ok()) << connected.status().to_string();
    member.client = std::move(*connected);
  }

  void AsJoined() {
    std::vector<Status> joined(members_.size());
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < size(); ++rank) {
      threads.emplace_back([this, &joined, rank] { joined[static_cast<std::size_t>(rank)] = join(rank); });
    }
    threads.clear();
    for (const Status& status : joined) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }

  Status join(Rank rank) { return join(rank, members_[static_cast<std::size_t>(rank)]); }
  Status join(Rank rank, Member& member, const std::optional<control::Regroup>& regroup = {}) {
    rendezvous::JoinRequest request;
    request.rank = rank;
    request.size = size();
    request.fanout = fanout_;
    request.hostname = "host";
    request.host_id = std::string("id");
    request.version = "test";
    request.report = regroup ? control::encode(control::RosterReport(*regroup)) : report_;
    return member.client->join(request).status();
  }

  int size() const { return static_cast<int>(members_.size()); }

  void send_tree(Rank from, const control::Bundle& bundle) {
    members_[static_cast<std::size_t>(from)].client->send_tree(control::encode(bundle));
  }
  void send(Rank from, const control::MemberMessage& message) {
    members_[static_cast<std::size_t>(from)].client->send(control::encode(message));
  }

  const int fanout_;
  rendezvous::Secret secret_;
  std::vector<std::byte> report_;  // comes with the request to join
  std::atomic<Rank> lost_rank_{-1};
  std::unique_ptr<CoordinatorServer> hub_;
  std::deque<Member> members_;
};

TEST_F(CoordinatorServerTest, AgreementsReachAllMembers) {
  control::OpMeta meta;
  meta.dims = {3};
  send(0, control::Announce{"a", 0, meta});
  send(1, control::Announce{"a", 0, meta});
  for (Member& member : members_) {
    const auto agreed = member.wait_for<control::Agreed>();
    ASSERT_TRUE(agreed);
    EXPECT_EQ(agreed->name, "a");
  }
}

TEST_F(CoordinatorServerTest, NonsenseFromAMemberFailsTheJobNamingIt) {
  members_[1].client->send(std::vector<std::byte>(10, std::byte{0xee}));
  const auto failed = members_[0].wait_for<control::JobFailed>();
  ASSERT_TRUE(failed);
  EXPECT_NE(failed->status.text().find("rank 1"), std::string_view::npos) << failed->status.to_string();
}

TEST_F(CoordinatorServerTest, AMemberThatVanishesIsReported) {
  members_[1].client.reset();
  EXPECT_EQ(members_[0].wait_for_loss().substr(0, 2), "1:");
  EXPECT_FALSE(hub_->drain(Duration(0)));
  members_[0].client->leave(std::chrono::seconds(5));
  EXPECT_TRUE(hub_->drain(kDeadline));
  EXPECT_EQ(lost_rank_, 1);
}

TEST_F(CoordinatorServerTest, TraceOfAllMembersBecomesOneFile) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("sirtaki_hub_test_" + std::to_string(::getpid()) + ".json")).string();
  send(0, control::TraceRequest{true, path});
  for (Rank rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(members_[static_cast<std::size_t>(rank)].wait_for<control::TraceSwitch>());
    Timeline timeline(rank, "host " + std::to_string(rank));
    timeline.set_enabled(true);
    Span span;
    span.name = timeline.name_id("gradient of rank " + std::to_string(rank));
    span.begin = TimePoint(std::chrono::seconds(1));
    span.end = TimePoint(std::chrono::seconds(2));
    timeline.track("ops").record(span);
    send(rank, control::TraceChunk{timeline.drain(), true});
  }
  for (Member& member : members_) {
    member.client->leave(std::chrono::seconds(5));
  }
  hub_.reset();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::filesystem::remove(path);
  EXPECT_NE(text.str().find("gradient of rank 0"), std::string::npos);
  EXPECT_NE(text.str().find("gradient of rank 1"), std::string::npos);
}

// Messages are in flight during the destruction, and each one makes the coordinator send to all members.
TEST_F(CoordinatorServerTest, MayBeDestroyedWhileMessagesArrive) {
  for (int i = 0; i < 2000; ++i) {
    send(0, control::JobBroken{Status(Code::kAborted, "broken")});
  }
  ASSERT_TRUE(members_[1].wait_for<control::JobFailed>());
  hub_->report_exit(1, "was killed");
  hub_.reset();
}

// A tree in which rank 0 relays for ranks 0 and 1, and rank 2 for itself.
class CoordinatorTreeTest : public CoordinatorServerTest {
 protected:
  CoordinatorTreeTest() : CoordinatorServerTest(3, 2) {}
};

TEST_F(CoordinatorTreeTest, TheServerSendsToTheTopRelaysOnly) {
  control::OpMeta meta;
  meta.dims = {3};
  send_tree(0, {{control::RankSet::range(0, 2), control::Announce{"a", 0, meta}}});
  send_tree(2, {{control::RankSet::of(2), control::Announce{"a", 0, meta}}});
  EXPECT_EQ(members_[0].wait_for_tree(1), std::vector<std::string>{"ranks 0, 1: 0"});
  EXPECT_EQ(members_[2].wait_for_tree(1), std::vector<std::string>{"rank 2: 0"});
  // Once the second answer is here, a missing first one on rank 1 was not merely late.
  send_tree(0, {{control::RankSet::range(0, 2), control::Announce{"b", 0, meta}}});
  send_tree(2, {{control::RankSet::of(2), control::Announce{"b", 0, meta}}});
  EXPECT_EQ(members_[0].wait_for_tree(2).size(), 2U);
  EXPECT_TRUE(members_[1].wait_for_tree(0).empty());
}

TEST_F(CoordinatorTreeTest, MessagesForRanksOfAnotherRelayFailTheJob) {
  send_tree(1, {{control::RankSet::of(1), control::StreamClose{StreamId(1)}}});
  const auto failed = members_[2].wait_for<control::JobFailed>();
  ASSERT_TRUE(failed);
  EXPECT_NE(failed->status.text().find("rank 1: it speaks for rank 1"), std::string_view::npos)
      << failed->status.to_string();
}

TEST_F(CoordinatorTreeTest, JunkForSeveralRanksFailsTheJobToo) {
  members_[0].client->send_tree(std::vector<std::byte>(10, std::byte{0xee}));
  const auto failed = members_[1].wait_for<control::JobFailed>();
  ASSERT_TRUE(failed);
  EXPECT_NE(failed->status.text().find("rank 0"), std::string_view::npos) << failed->status.to_string();
}

TEST_F(CoordinatorTreeTest, ALostConnectionOfTheTreeIsReportedToAllRanks) {
  send(1, control::JobBroken{Status(Code::kPeerLost, "cable out", {0, ""})});
  for (Member& member : members_) {
    const auto failed = member.wait_for<control::JobFailed>();
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->status.text(), "cable out");
  }
}

TEST_F(CoordinatorTreeTest, ARankThatRelaysOnHasLeftForTheOthers) {
  send_tree(0, {{control::RankSet::of(0), control::Leaving{}}});
  EXPECT_EQ(members_[1].wait_for_leave(), std::vector<Rank>{0});
  EXPECT_EQ(members_[2].wait_for_leave(), std::vector<Rank>{0});
  // The connection of rank 0 still carries messages of the other ranks and their answers.
  send_tree(0, {{control::RankSet::of(1), control::Announce{"a", 0, {}}}});
  std::vector<std::string> received = members_[0].wait_for_tree(2);
  std::ranges::sort(received);
  EXPECT_EQ(received, (std::vector<std::string>{"rank 1: " + std::to_string(kRanksLeft), "ranks 0, 1: 2"}));
  EXPECT_EQ(members_[2].wait_for_tree(2).size(), 2U);
  for (Member& member : members_) {
    member.client->leave(std::chrono::seconds(5));
  }
  EXPECT_TRUE(hub_->drain(kDeadline));
  EXPECT_EQ(members_[2].wait_for_leave().front(), 0);
  EXPECT_EQ(lost_rank_, -1);
}

class GrowingJobTest : public CoordinatorServerTest {
 protected:
  GrowingJobTest() : CoordinatorServerTest(2) { report_ = control::encode(control::RosterReport(control::Regroup())); }

  void choose(CoordinatorServerOptions& options, CoordinatorServerEvents& events) override {
    options.elastic_min = 1;
    options.elastic_max = 4;
    events.on_new_rank = [this](const NewRank& rank) {
      (rank.stage == NewRank::Stage::kWaits ? candidate_waits_ : candidate_lost_).count_down();
    };
    events.on_epoch = [this](const rendezvous::Membership& epoch) {
      note("epoch " + std::to_string(epoch.epoch.value));
    };
    events.on_survived = [this](const Survived& survived) {
      note("slot " + std::to_string(survived.slot) + " survived by " + std::to_string(survived.remaining) +
           " as epoch " + std::to_string(survived.next.value));
    };
  }

  void TearDown() override { hub_.reset(); }  // its events come no more

  // Lets a member ask for the second epoch, which the first change of the job brings about.
  Status change(Rank rank) {
    control::Regroup regroup;
    regroup.last = Epoch(1);
    regroup.change = 1;
    regroup.has_state = true;
    return join(rank, members_[static_cast<std::size_t>(rank)], regroup);
  }

  // Returns the first epochs, losses and departures, in their order, when there are as many.
  std::vector<std::string> history(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kDeadline, [&] { return history_.size() >= count; });
    return history_;
  }

  // Lets the second member ask for the first change of the job, in which it leaves.
  void ask_to_leave() {
    hub_->announce(1, true);
    EXPECT_TRUE(members_[0].wait_for_announced(1));
    members_[1].client->report(control::encode(control::RosterReport(control::MustLeave())));
    EXPECT_TRUE(members_[0].wait_for_announced(0));
  }

  std::latch candidate_waits_{1};
  std::latch candidate_lost_{1};

 private:
  void note(const std::string& event) {
    const std::lock_guard lock(mutex_);
    history_.push_back(event);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> history_;
};

TEST_F(GrowingJobTest, RanksLearnHowManyProcessesAreOnTheirWay) {
  EXPECT_TRUE(members_[0].wait_for_announced(0));
  hub_->announce(2, true);
  hub_->announce(3, true);
  EXPECT_TRUE(members_[0].wait_for_announced(2));
  hub_->announce(3, false);
  EXPECT_TRUE(members_[1].wait_for_announced(1));
  hub_->announce(1, true);
  EXPECT_TRUE(members_[0].wait_for_announced(2));
  members_[1].client->report(control::encode(control::RosterReport(control::MustLeave())));
  EXPECT_TRUE(members_[0].wait_for_announced(1)) << "it has asked for its change";
}

class FullJobTest : public GrowingJobTest {
 protected:
  void choose(CoordinatorServerOptions& options, CoordinatorServerEvents& events) override {
    GrowingJobTest::choose(options, events);
    options.elastic_max = 2;
    options.spares = 2;
  }
};

TEST_F(FullJobTest, RanksLearnOfNoSpares) {
  hub_->announce(0, true);
  hub_->announce(1, true);
  EXPECT_TRUE(members_[0].wait_for_announced(2)) << "those that leave";
  hub_->announce(2, true);
  hub_->announce(3, true);
  hub_->announce(0, false);
  EXPECT_TRUE(members_[0].wait_for_announced(1));
}

TEST_F(FullJobTest, ASpareTakesThePlaceOfALostRank) {
  Member spare;
  ASSERT_NO_FATAL_FAILURE(connect(spare));
  const std::jthread waits([&] { EXPECT_TRUE(join(3, spare).ok()); });
  candidate_waits_.wait();
  members_[1].client.reset();
  control::Regroup regroup;
  regroup.last = Epoch(1);
  regroup.has_state = regroup.admits = true;
  EXPECT_EQ(join(0, members_[0], regroup).to_string(), "ok");
  EXPECT_EQ(history(3), (std::vector<std::string>{"epoch 1", "slot 1 survived by 1 as epoch 2", "epoch 2"}));
}

// The launcher announces the next process of a place as soon as it knows the end of the last one, the hub may be later.
TEST_F(GrowingJobTest, TheLossOfAProcessThatHasComeLeavesTheNextOneAnnounced) {
  Member candidate;
  ASSERT_NO_FATAL_FAILURE(connect(candidate));
  hub_->announce(2, true);
  const std::jthread waits([&] { EXPECT_FALSE(join(2, candidate).ok()); });
  candidate_waits_.wait();
  EXPECT_TRUE(members_[0].wait_for_announced(0));
  hub_->announce(2, true);
  hub_->report_exit(2, "exit code 1");
  candidate_lost_.wait();
  hub_->announce(3, true);
  EXPECT_TRUE(members_[0].wait_for_announced(2));
}

// Its notice may come from somebody else, just before the launcher asks it to leave.
TEST_F(GrowingJobTest, AMemberThatHasPartedIsNotOnItsWayOutAnyMore) {
  ask_to_leave();
  hub_->announce(1, true);
  EXPECT_TRUE(members_[0].wait_for_announced(1));
  const std::jthread parts([&] { EXPECT_EQ(change(1).code(), Code::kShutdown); });
  ASSERT_EQ(change(0).to_string(), "ok");
  EXPECT_TRUE(members_[0].wait_for_announced(0));
}

// Or the owner would look for the reason of the new epoch in vain.
TEST_F(GrowingJobTest, ADepartureIsToldBeforeTheEpochThatItBringsAbout) {
  ask_to_leave();
  const std::jthread parts([&] { EXPECT_EQ(change(1).code(), Code::kShutdown); });
  ASSERT_EQ(change(0).to_string(), "ok");
  EXPECT_EQ(history(3), (std::vector<std::string>{"epoch 1", "slot 1 survived by 1 as epoch 2", "epoch 2"}));
}

// Or survivors that cannot connect would repeat their epochs for ever.
TEST(CoordinatorOptions, AnEpochWhoseRanksCannotConnectIsARepeatHoweverLongTheyTry) {
  for (const auto& [connect_timeout, least] :
       {std::pair<const char*, Duration>{"30s", std::chrono::seconds(63)}, {"24h", std::chrono::hours(48)}}) {
    ConfigSources sources;
    sources.program = std::string("elastic.min = 2\ncontrol.connect_timeout = \"") + connect_timeout + "\"\n";
    EXPECT_GE(coordinator_options(**load_config(sources)).repeat_within, least) << connect_timeout;
  }
}

// Users choose a short time for survivors, so that these fail fast, which must not end programs that load for longer.
TEST(CoordinatorOptions, TheTimeForTheStateIsNotThatOfSurvivors) {
  ConfigSources sources;
  sources.program = "elastic.min = 2\nelastic.timeout = \"5s\"\nelastic.join_timeout = \"7min\"\n";
  const CoordinatorServerOptions options = coordinator_options(**load_config(sources));
  EXPECT_EQ(options.regroup_timeout, std::chrono::seconds(5));
  EXPECT_EQ(options.state_timeout, std::chrono::minutes(7));
}

TEST(CoordinatorOptions, AnEpochWhoseNcclHangsIsARepeatHoweverLongThatTakes) {
  for (const std::string option : {"nccl_connect_timeout", "nccl_launch_timeout", "nccl_timeout"}) {
    ConfigSources sources;
    sources.program = "elastic.min = 2\ndevice." + option + " = \"5h\"\n";
    EXPECT_GE(coordinator_options(**load_config(sources)).repeat_within, std::chrono::hours(5)) << option;
  }
}

}  // namespace
}  // namespace sirtaki::hub
