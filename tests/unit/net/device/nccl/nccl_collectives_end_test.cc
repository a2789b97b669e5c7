// Ends of NcclCollectives: aborts, errors, cancellation, close.
#include <gtest/gtest.h>

#include "tests/unit/net/device/nccl/nccl_collectives_fixture.h"

namespace sirtaki::net::nccl {
namespace {

TEST_F(NcclCollectivesTest, AbortEndsEverythingOnceTheDeviceIsIdle) {
  connect();
  device_.hold();
  start(1);
  start(2);
  run_briefly();
  start(3);
  collectives_->abort({Code::kAborted, "first"});
  collectives_->abort({Code::kBug, "second"});
  run_briefly();
  EXPECT_TRUE(ends_.empty()) << "the buffers are still in use";
  EXPECT_EQ(nccl_.alive(), 0);
  device_.run();
  for (const std::uint64_t tag : {1U, 2U, 3U}) {
    EXPECT_TRUE(wait(tag));
    EXPECT_EQ(ends_.at(tag).text(), "first");
  }
  start(4);
  EXPECT_TRUE(wait(4));
  EXPECT_EQ(ends_.at(4).text(), "first");
}

TEST_F(NcclCollectivesTest, AbortBeforeTheFirstConnectionKeepsTheFirstCause) {
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kShutdown);
  collectives_->abort({Code::kAborted, "first"});
  collectives_->abort({Code::kBug, "second"});
  start(2);
  EXPECT_TRUE(wait(2));
  EXPECT_EQ(ends_.at(2).text(), "first");
}

TEST_F(NcclCollectivesTest, DoesNotWaitForEverForADeviceThatHangs) {
  connect();
  device_.hold();
  start(1);
  run_briefly();
  collectives_->abort({Code::kAborted, "test"});
  const TimePoint begin = loop_.now();
  EXPECT_TRUE(wait(1));
  EXPECT_GE(loop_.now() - begin, std::chrono::seconds(1));
  EXPECT_FALSE(collectives_->drained()) << "a release of memory would wait for the device";
}

TEST_F(NcclCollectivesTest, AbortEndsALaunchInProgress) {
  connect();
  nccl_.polls = -1;
  start(1);
  collectives_->abort({Code::kAborted, "test"});
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kAborted);
}

TEST_F(NcclCollectivesTest, CancellingEndsTheOthersAsWell) {
  connect();
  device_.hold();
  for (const std::uint64_t tag : {16U, 17U, 32U}) {
    start(tag);
  }
  run_briefly();
  collectives_->cancel({OpTag(64), ~std::uint64_t{15}}, {Code::kMismatch, "nothing of this"});
  EXPECT_EQ(nccl_.alive(), 1);
  collectives_->cancel({OpTag(16), ~std::uint64_t{15}}, {Code::kMismatch, "a step given up"});
  device_.run();
  EXPECT_TRUE(wait(16) && wait(17) && wait(32));
  EXPECT_EQ(code(16), Code::kMismatch);
  EXPECT_EQ(code(17), Code::kMismatch);
  EXPECT_EQ(code(32), Code::kAborted);
  EXPECT_NE(ends_.at(32).text().find("a step given up"), std::string::npos);
  start(33);
  EXPECT_TRUE(wait(33));
  EXPECT_EQ(code(33), Code::kAborted) << "for good";
}

TEST_F(NcclCollectivesTest, ABadCallEndsAllCommunicators) {
  NcclOptions options;
  options.host_size = 2;
  make(options);
  connect();
  nccl_.will_return("all_reduce", {Outcome::kSuccess, Outcome::kInvalidArgument});
  device_.hold();
  start(1);
  start(2);
  start(3);
  run_briefly();
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2) && wait(3));
  EXPECT_EQ(code(2), Code::kInvalidArgument);
  EXPECT_EQ(nccl_.count("all_reduce"), 2) << "nothing is launched behind it";
  EXPECT_EQ(nccl_.alive(), 0);
}

TEST_F(NcclCollectivesTest, AllCommunicatorsEndAtOnceWhileTheLoopGoesOn) {
  NcclOptions options;
  options.host_size = 2;
  make(options);
  connect();
  device_.hold();
  start(1, on_host());
  start(2);
  run_briefly();
  teardown_.held = true;
  nccl_.async = Outcome::kRemoteError;
  run_briefly();
  EXPECT_EQ(teardown_.pending(), 2U) << "each may wait for the other";
  bool closed = false;
  collectives_->close([&](const Status& /*status*/) { closed = true; });
  run_briefly();
  EXPECT_FALSE(closed) << "NCCL has not ended";
  EXPECT_FALSE(collectives_->drained());
  teardown_.held = false;
  teardown_.run();
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(code(1), Code::kPeerLost);
  EXPECT_EQ(code(2), Code::kPeerLost);
}

TEST_F(NcclCollectivesTest, ClosingDoesNotWaitForEverForNccl) {
  connect();
  teardown_.held = true;
  const TimePoint begin = loop_.now();
  bool closed = false;
  collectives_->close([&](const Status& /*status*/) { closed = true; });
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_GE(loop_.now() - begin, std::chrono::seconds(1));
  teardown_.run();
}

TEST_F(NcclCollectivesTest, FindsErrorsWhileTheDeviceWorks) {
  connect();
  device_.hold();
  start(1);
  run_briefly();
  nccl_.async = Outcome::kRemoteError;
  run_briefly();
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kPeerLost);
  EXPECT_EQ(nccl_.alive(), 0);
}

TEST_F(NcclCollectivesTest, TimesOutAnOperation) {
  connect();
  device_.hold();
  start(77);
  EXPECT_TRUE(wait(77));
  EXPECT_EQ(code(77), Code::kTimeout);
  EXPECT_NE(ends_.at(77).text().find("allreduce with tag 77"), std::string::npos) << ends_.at(77).to_string();
}

TEST_F(NcclCollectivesTest, PassesErrorsOfTheDeviceOn) {
  connect();
  device_.refuse_next({Code::kUnavailable, "no more records"});
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(ends_.at(1).text(), "no more records");
  make({});
  connect();
  device_.hold();
  start(2);
  run_briefly();
  device_.break_down({Code::kUnavailable, "an illegal address"});
  EXPECT_TRUE(wait(2));
  EXPECT_EQ(ends_.at(2).text(), "an illegal address");
}

TEST_F(NcclCollectivesTest, ClosesInOrderIfNothingIsInFlight) {
  connect();
  bool closed = false;
  collectives_->close([&](const Status& status) { closed = status.ok(); });
  start(1);
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 1);
  EXPECT_EQ(nccl_.alive(), 0);
  EXPECT_EQ(code(1), Code::kShutdown);
  EXPECT_TRUE(collectives_->drained());
}

TEST_F(NcclCollectivesTest, AllCommunicatorsCloseUpToOneDeadline) {
  NcclOptions options;
  options.host_size = 2;
  options.communicator.call_timeout = std::chrono::seconds(2);
  make(options);
  connect();
  nccl_.polls = -1;
  const TimePoint begin = loop_.now();
  bool closed = false;
  collectives_->close([&](const Status& /*status*/) { closed = true; });
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 2);
  EXPECT_GE(loop_.now() - begin, std::chrono::seconds(2));
  EXPECT_LT(loop_.now() - begin, std::chrono::seconds(3));
}

TEST_F(NcclCollectivesTest, ClosingEndsOperationsInFlight) {
  connect();
  device_.hold();
  start(1);
  run_briefly();
  bool closed = false;
  collectives_->close([&](const Status& /*status*/) { closed = true; });
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 0);
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kShutdown);
}

TEST_F(NcclCollectivesTest, IsDestroyedWithOperationsInFlight) {
  connect();
  device_.hold();
  nccl_.polls = 2;
  start(1);
  start(2);
  collectives_.reset();
  run_briefly();
  EXPECT_TRUE(ends_.empty());
  EXPECT_EQ(nccl_.alive(), 0);
}

}  // namespace
}  // namespace sirtaki::net::nccl
