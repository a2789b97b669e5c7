// NcclCollectives of process sets: communicators of their own, which are made and dropped beside that of the job.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/net/device/nccl/nccl_collectives_fixture.h"

namespace sirtaki::net::nccl {
namespace {

constexpr LaunchSet kSet = kFirstProcessSet;

class NcclSetsTest : public NcclCollectivesTest {
 protected:
  NcclSetsTest() { collectives_->add_set(kSet, "set", {1, 3}, set_ids_); }
  // The exchange goes to rank 0 of the set, which is not here.
  ~NcclSetsTest() override { collectives_.reset(); }

  void connect_set() {
    UniqueId id{};
    id.internal[0] = 42;
    set_ids_.exchange("set", &id, [](const Result<UniqueId>& /*id*/) {});
    collectives_->connect_set(kSet, [this](Status status) { connected_ = std::move(status); });
  }
  void connect_it() {
    connect_set();
    ASSERT_TRUE(loop_.run([&] { return connected_.has_value(); }));
    ASSERT_TRUE(connected_->ok()) << connected_->to_string();
  }
  // Connects, and keeps an operation of the set on the device, and one of the job behind it.
  void hold_work_of_both() {
    connect();
    connect_it();
    device_.hold();
    start(1, in_set());
    start(2);
    run_briefly();
  }
  static DeviceWork in_set() {
    DeviceWork work;
    work.set = kSet;
    return work;
  }

  LocalIds set_ids_{loop_};
  std::optional<Status> connected_;
};

TEST_F(NcclSetsTest, ASetIsConnectedWithoutTheJob) {
  start(1, in_set());
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kShutdown) << "not connected yet";
  connect_it();
  start(2, in_set());
  start(3);
  EXPECT_TRUE(wait(2) && wait(3));
  EXPECT_EQ(code(2), Code::kOk);
  EXPECT_EQ(code(3), Code::kShutdown) << "the job is not connected";
}

TEST_F(NcclSetsTest, AnAverageIsThatOfItsRanks) {
  connect_it();
  start(1, in_set(), ReduceOp::kAverage);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(memory_[0], 2.0F) << "of three, which NCCL does not divide by";
}

// NCCL allocates memory while it connects, and that may wait for the device.
TEST_F(NcclSetsTest, CommunicatorsAreMadeInTheOrderOfOperationsOnAnIdleDevice) {
  connect();
  const int inits = nccl_.count("init");
  device_.hold();
  start(1);
  run_briefly();
  connect_set();
  start(2);
  run_briefly();
  EXPECT_EQ(nccl_.count("init"), inits) << "the first operation is on the device";
  EXPECT_EQ(nccl_.count("all_reduce"), 1) << "the second one waits for the connection";
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(nccl_.count("init"), inits + 1);
  EXPECT_TRUE(connected_ && connected_->ok());
  EXPECT_EQ(code(2), Code::kOk);
}

TEST_F(NcclSetsTest, ASetThatCannotConnectLeavesTheOthersInUse) {
  connect();
  nccl_.will_return("init", {Outcome::kSystemError});
  connect_set();
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kOk);
  ASSERT_TRUE(connected_.has_value());
  EXPECT_EQ(connected_->code(), Code::kUnavailable);
  start(2, in_set());
  start(3);
  EXPECT_TRUE(wait(2) && wait(3));
  EXPECT_EQ(code(2), Code::kUnavailable);
  EXPECT_EQ(code(3), Code::kOk) << "an aborted communicator of another set is no error";
}

TEST_F(NcclSetsTest, AJobThatCannotConnectLeavesSetsInUse) {
  connect_it();
  nccl_.will_return("init", {Outcome::kSystemError});
  std::optional<Status> job;
  collectives_->connect_set(kJobSet, [&](Status status) { job = std::move(status); });
  start(1, in_set());
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kOk);
  EXPECT_TRUE(job && !job->ok());
}

TEST_F(NcclSetsTest, ADroppedSetLeavesTheOthersInUse) {
  connect();
  connect_it();
  const int alive = nccl_.alive();
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 2 is gone"});
  EXPECT_EQ(nccl_.alive(), alive - 1);
  start(1, in_set());
  start(2);
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(code(1), Code::kPeerLost);
  EXPECT_EQ(code(2), Code::kOk);
}

TEST_F(NcclSetsTest, ADropWhileItConnectsEndsTheConnection) {
  nccl_.polls = -1;
  connect_set();
  run_briefly();
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 2 is gone"});
  EXPECT_TRUE(loop_.run([&] { return connected_.has_value(); }));
  EXPECT_EQ(connected_->text(), "rank 2 is gone");
  nccl_.polls = 0;
  connect();
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kOk);
}

TEST_F(NcclSetsTest, OperationsInFlightMayEndAfterADrop) {
  hold_work_of_both();
  const int alive = nccl_.alive();
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 2 is gone"});
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 0 is gone"});
  start(3, in_set());
  run_briefly();
  EXPECT_EQ(nccl_.alive(), alive) << "its communicator is in use";
  EXPECT_EQ(ends_.at(3).text(), "rank 2 is gone") << "the first cause";
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(code(1), Code::kOk);
  EXPECT_EQ(code(2), Code::kOk);
  run_briefly();
  EXPECT_EQ(nccl_.alive(), alive - 1);
  start(4);
  device_.run();
  EXPECT_TRUE(wait(4));
  EXPECT_EQ(code(4), Code::kOk);
}

// It is in front of the work of the others.
TEST_F(NcclSetsTest, WorkOfADroppedSetThatDoesNotEndEndsEverything) {
  hold_work_of_both();
  const TimePoint begin = loop_.now();
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 2 is gone"});
  // Another loss gives it no more time.
  loop_.after(std::chrono::milliseconds(600), [this] {
    collectives_->drop_set(kSet, {Code::kPeerLost, "rank 0 is gone"});
    collectives_->drop_set(kJobSet, {Code::kPeerLost, "rank 0 is gone"});
  });
  EXPECT_TRUE(loop_.run([&] { return nccl_.alive() == 0; }));
  EXPECT_GE(loop_.now() - begin, std::chrono::seconds(1));
  EXPECT_LT(loop_.now() - begin, std::chrono::milliseconds(1500));
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2));
  for (const std::uint64_t tag : {1U, 2U}) {
    EXPECT_EQ(ends_.at(tag).to_string(), ends_.at(1).to_string());
    EXPECT_EQ(code(tag), Code::kPeerLost);
  }
  EXPECT_EQ(ends_.at(1).text(), "allreduce with tag 1 is still on the device: rank 2 is gone");
}

// The time of an operation begins when it is the first one.
TEST_F(NcclSetsTest, ADroppedSetDoesNotPayForTheWorkInFrontOfIt) {
  connect();
  connect_it();
  device_.hold();
  start(1);
  start(2, in_set());
  run_briefly();
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 2 is gone"});
  const TimePoint until = loop_.now() + std::chrono::milliseconds(1500);
  loop_.run([&] { return loop_.now() >= until; });
  EXPECT_TRUE(ends_.empty());
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(code(2), Code::kOk);
}

// A peer that is gone is an error of NCCL, which concerns the sets of that peer only.
TEST_F(NcclSetsTest, ADroppedSetIsNotAskedForErrors) {
  connect_it();
  device_.hold();
  start(1, in_set());
  run_briefly();
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 2 is gone"});
  nccl_.async = Outcome::kRemoteError;
  run_briefly();
  EXPECT_TRUE(ends_.empty());
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kOk);
}

// A rank of that set may have left in order.
TEST_F(NcclSetsTest, ASetWithoutWorkIsNotAskedForErrors) {
  connect();
  connect_it();
  device_.hold();
  start(1);
  run_briefly();
  nccl_.async_of = 1;
  nccl_.async = Outcome::kRemoteError;
  run_briefly();
  EXPECT_EQ(nccl_.count("abort"), 0);
  nccl_.async_of = 0;
  run_briefly();
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kPeerLost) << "the job has work";
}

TEST_F(NcclSetsTest, TextsNameTheRankOfTheJob) {
  connect_it();
  device_.hold();
  start(1, in_set());
  run_briefly();
  nccl_.async = Outcome::kSystemError;
  run_briefly();
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_NE(ends_.at(1).text().find("communicator 'set' of rank 0:"), std::string::npos)
      << "its number in the set is 1: " << ends_.at(1).text();
}

TEST_F(NcclSetsTest, AnAbortEndsTheMakingOfCommunicators) {
  connect();
  device_.hold();
  start(1);
  run_briefly();
  connect_set();
  collectives_->abort({Code::kAborted, "test"});
  EXPECT_TRUE(loop_.run([&] { return connected_.has_value(); }));
  EXPECT_EQ(connected_->text(), "test");
  connected_.reset();
  connect_set();
  EXPECT_TRUE(loop_.run([&] { return connected_.has_value(); }));
  EXPECT_EQ(connected_->text(), "test") << "later, too";
  device_.run();
  EXPECT_TRUE(wait(1));
}

// Ranks learn of each other's end while they close.
TEST_F(NcclSetsTest, ADropWhileAllAreClosedDisturbsNothing) {
  connect();
  connect_it();
  nccl_.polls = -1;
  bool closed = false;
  collectives_->close([&](const Status& status) { closed = status.ok(); });
  run_briefly();
  collectives_->drop_set(kJobSet, {Code::kPeerLost, "rank 1 is gone"});
  collectives_->drop_set(kSet, {Code::kPeerLost, "rank 1 is gone"});
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(std::ranges::count_if(
                lines_, [](const std::string& line) { return line.find("rank 1 is gone") != std::string::npos; }),
            0)
      << ::testing::PrintToString(lines_);
}

TEST_F(NcclSetsTest, AllCommunicatorsAreClosed) {
  connect();
  connect_it();
  bool closed = false;
  collectives_->close([&](const Status& status) { closed = status.ok(); });
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 2);
  EXPECT_EQ(nccl_.alive(), 0);
}

}  // namespace
}  // namespace sirtaki::net::nccl
