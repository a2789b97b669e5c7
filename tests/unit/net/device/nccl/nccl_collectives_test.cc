#include "runtime/net/device/nccl/nccl_collectives.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tests/unit/net/device/nccl/nccl_collectives_fixture.h"

namespace sirtaki::net::nccl {
namespace {

TEST_F(NcclCollectivesTest, ConnectsUrgentFirst) {
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kShutdown);
  connect();
  EXPECT_EQ(ids_.keys(), (std::vector<std::string>{"urgent/1", "bulk/1"}));
  EXPECT_TRUE(collectives_->caps().ordered);
}

TEST_F(NcclCollectivesTest, ReportsWhyItIsNotConnected) {
  nccl_.will_return("init", {Outcome::kSuccess, Outcome::kRemoteError});
  Status connected;
  collectives_->connect(1, [&](Status status) { connected = std::move(status); });
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(connected.code(), Code::kPeerLost);
  EXPECT_EQ(code(1), Code::kPeerLost);
  EXPECT_EQ(nccl_.alive(), 0) << "both or none";
}

TEST_F(NcclCollectivesTest, EndsWhenTheDeviceIsDone) {
  connect();
  device_.seal();
  device_.hold();
  start(1);
  run_briefly();
  EXPECT_EQ(nccl_.count("all_reduce"), 1);
  EXPECT_FALSE(ends_.contains(1));
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kOk);
  EXPECT_EQ(collectives_->bytes_in_flight(), 0U);
}

TEST_F(NcclCollectivesTest, WaitsForTheInputAndRecordsTheEndOnTheDevice) {
  const device::Event ready = *device_.make_event();
  connect();
  device_.hold();
  ASSERT_TRUE(device_.record(ready, stream_).ok());
  bool queued = false;
  start(1, kBulk, {ready, event_, [&] { queued = true; }});
  EXPECT_FALSE(queued) << "called from inside";
  run_briefly();
  EXPECT_TRUE(queued) << "it is on the stream, though its input is not ready";
  EXPECT_FALSE(*device_.done(event_));
  EXPECT_FALSE(ends_.contains(1));
  device_.run();
  EXPECT_TRUE(*device_.done(event_));
  EXPECT_TRUE(wait(1));
  device_.destroy(ready);
}

TEST_F(NcclCollectivesTest, DividesAnAverage) {
  connect();
  start(1, kBulk, {}, ReduceOp::kAverage);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(memory_[0], 3);
  EXPECT_EQ(memory_[1], 4);
}

TEST_F(NcclCollectivesTest, LaunchesInTheOrderOfStarts) {
  connect();
  nccl_.polls = 3;
  device_.hold();
  const auto before = nccl_.calls().size();
  for (std::uint64_t tag = 1; tag <= 4; ++tag) {
    start(tag, tag % 2 == 0 ? kUrgent : kBulk);
  }
  EXPECT_EQ(collectives_->waiting(), 4U) << "one at a time";
  run_briefly();
  EXPECT_EQ(collectives_->waiting(), 0U);
  EXPECT_EQ(nccl_.calls().size() - before, 4U * 3) << "groups of one call";
  EXPECT_TRUE(ends_.empty());
  device_.run();
  for (std::uint64_t tag = 1; tag <= 4; ++tag) {
    EXPECT_TRUE(wait(tag));
  }
}

TEST_F(NcclCollectivesTest, OrdersCommunicatorsOnTheDeviceUnlessNcclDoes) {
  for (const bool by_nccl : {false, true}) {
    NcclOptions options;
    options.ordered_by_nccl = by_nccl;
    make(options);
    connect();
    const device::Event ready = *device_.make_event();
    device_.hold();
    ASSERT_TRUE(device_.record(ready, stream_).ok());
    start(10, kBulk, {ready, {}, {}});
    start(11, kUrgent, {{}, event_, {}});
    run_briefly();
    // Counts all streams except the one on which `ready` is recorded.
    const std::size_t queued = device_.queued();
    EXPECT_EQ(queued, by_nccl ? 5U : 6U) << "one wait more";
    device_.run();
    EXPECT_TRUE(wait(10) && wait(11));
    ends_.clear();
    device_.destroy(ready);
  }
}

TEST_F(NcclCollectivesTest, SumsOfAHostHaveACommunicatorAndTheOrderOfAll) {
  NcclOptions options;
  options.host_size = 2;
  make(options);
  connect();
  EXPECT_EQ(ids_.keys(), (std::vector<std::string>{"urgent/1", "bulk/1"}));
  EXPECT_EQ(host_ids_.keys(), std::vector<std::string>{"host/1"});
  const device::Event ready = *device_.make_event();
  device_.hold();
  ASSERT_TRUE(device_.record(ready, stream_).ok());
  start(10, kBulk, {ready, {}, {}});
  start(11, kBulk, {{}, event_, {}, true});
  run_briefly();
  EXPECT_EQ(device_.queued(), 6U) << "a launch over the host communicator waits for the previous launch";
  EXPECT_EQ(nccl_.count("all_reduce"), 2);
  device_.run();
  EXPECT_TRUE(wait(10) && wait(11));
  EXPECT_EQ(code(11), Code::kOk);
  start(12, kBulk, {{}, {}, {}, true}, ReduceOp::kAverage);
  EXPECT_TRUE(wait(12));
  EXPECT_EQ(code(12), Code::kInvalidArgument) << "sums only";
  bool closed = false;
  collectives_->close([&](const Status& status) { closed = status.ok(); });
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 3);
  device_.destroy(ready);
}

TEST_F(NcclCollectivesTest, ARankThatIsAloneOnItsHostTakesPartInTheOrder) {
  NcclOptions options;
  options.host_size = 1;
  make(options);
  connect();
  EXPECT_TRUE(host_ids_.keys().empty());
  start(1, kBulk, {{}, {}, {}, true});
  start(2);
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(code(1), Code::kOk);
  EXPECT_EQ(nccl_.count("all_reduce"), 1);
  EXPECT_EQ(memory_[0], 6) << "its sum is its own";
}

TEST_F(NcclCollectivesTest, RejectsSumsOfAHostWithoutAGroup) {
  connect();
  start(1, kBulk, {{}, {}, {}, true});
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kUnsupported);
}

TEST_F(NcclCollectivesTest, RespectsItsCredit) {
  NcclOptions options;
  options.credit_bytes = 16;
  make(options);
  connect();
  device_.hold();
  for (std::uint64_t tag = 1; tag <= 5; ++tag) {
    start(tag);
  }
  run_briefly();
  EXPECT_EQ(collectives_->bytes_in_flight(), 16U);
  EXPECT_EQ(collectives_->waiting(), 3U);
  start(6, kUrgent);
  run_briefly();
  EXPECT_EQ(collectives_->waiting(), 4U) << "no operation overtakes a waiting one, not even an urgent one";
  device_.run();
  EXPECT_TRUE(loop_.run([&] { return ends_.size() == 6; }));
  EXPECT_EQ(nccl_.count("all_reduce"), 6);
}

TEST_F(NcclCollectivesTest, RunsAnOperationLargerThanTheCredit) {
  NcclOptions options;
  options.credit_bytes = 4;
  options.most_in_flight = 1;
  make(options);
  connect();
  start(1);
  start(2);
  EXPECT_TRUE(wait(1));
  EXPECT_TRUE(wait(2));
}

TEST_F(NcclCollectivesTest, RejectsUnsupportedOperations) {
  connect();
  device_.hold();
  start(1);
  CollectiveArgs args;
  args.tag = OpTag(2);
  args.dtype = DType::kI16;
  args.in = args.out = Bytes(reinterpret_cast<std::byte*>(memory_), sizeof(memory_));
  Status unsupported;
  collectives_->start(args, [&](Status status) { unsupported = std::move(status); });
  args.dtype = DType::kF32;
  args.tag = OpTag(1);
  Status twice;
  collectives_->start(args, [&](Status status) { twice = std::move(status); });
  args.tag = OpTag(3);
  args.out = args.out.first(4);
  Status unequal;
  collectives_->start(args, [&](Status status) { unequal = std::move(status); });
  run_briefly();
  EXPECT_EQ(unsupported.code(), Code::kUnsupported);
  EXPECT_EQ(twice.code(), Code::kInvalidArgument);
  EXPECT_EQ(unequal.code(), Code::kInvalidArgument);
  device_.run();
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kOk);
}

TEST_F(NcclCollectivesTest, EmptyOperationsSucceed) {
  connect();
  CollectiveArgs args;
  args.tag = OpTag(1);
  bool ended = false;
  bool queued = false;
  collectives_->start_work(args, {{}, event_, [&] { queued = true; }}, [&](Status status) { ended = status.ok(); });
  EXPECT_FALSE(queued);
  EXPECT_TRUE(loop_.run([&] { return ended; }));
  EXPECT_TRUE(queued);
  EXPECT_EQ(nccl_.count("group_start"), 0);
}

TEST_F(NcclCollectivesTest, AbortEndsEverythingOnceTheDeviceIsIdle) {
  connect();
  device_.hold();
  start(1);
  start(2, kUrgent);
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
  connect();
  start(3);
  EXPECT_TRUE(wait(3));
  EXPECT_EQ(code(3), Code::kOk);
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
}

TEST_F(NcclCollectivesTest, AbortEndsALaunchInProgress) {
  connect();
  nccl_.polls = -1;
  start(1);
  collectives_->abort({Code::kAborted, "test"});
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kAborted);
  nccl_.polls = 0;
  connect();
  start(2);
  EXPECT_TRUE(wait(2));
  EXPECT_EQ(code(2), Code::kOk);
}

TEST_F(NcclCollectivesTest, CancellingEndsTheOthersAsWell) {
  connect();
  device_.hold();
  for (const std::uint64_t tag : {16U, 17U, 32U}) {
    start(tag);
  }
  run_briefly();
  collectives_->cancel({OpTag(64), ~std::uint64_t{15}}, {Code::kMismatch, "nothing of this"});
  EXPECT_EQ(nccl_.alive(), 2);
  collectives_->cancel({OpTag(16), ~std::uint64_t{15}}, {Code::kMismatch, "a step given up"});
  device_.run();
  EXPECT_TRUE(wait(16) && wait(17) && wait(32));
  EXPECT_EQ(code(16), Code::kMismatch);
  EXPECT_EQ(code(17), Code::kMismatch);
  EXPECT_EQ(code(32), Code::kAborted);
  EXPECT_NE(ends_.at(32).text().find("a step given up"), std::string::npos);
  start(33);
  EXPECT_TRUE(wait(33));
  EXPECT_EQ(code(33), Code::kAborted) << "until it is connected anew";
  connect();
  start(34);
  EXPECT_TRUE(wait(34));
  EXPECT_EQ(code(34), Code::kOk);
}

TEST_F(NcclCollectivesTest, ABadCallEndsBothCommunicators) {
  connect();
  nccl_.will_return("all_reduce", {Outcome::kSuccess, Outcome::kInvalidArgument});
  device_.hold();
  start(1, kUrgent);
  start(2);
  start(3);
  run_briefly();
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2) && wait(3));
  EXPECT_EQ(code(2), Code::kInvalidArgument);
  EXPECT_EQ(nccl_.count("all_reduce"), 2) << "nothing is launched behind it";
  EXPECT_EQ(nccl_.alive(), 0);
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
  connect();
  device_.hold();
  start(2);
  run_briefly();
  device_.break_down({Code::kUnavailable, "an illegal address"});
  EXPECT_TRUE(wait(2));
  EXPECT_EQ(ends_.at(2).text(), "an illegal address");
}

TEST_F(NcclCollectivesTest, ConnectingAgainEndsOperationsInFlight) {
  connect();
  device_.hold();
  start(1);
  run_briefly();
  bool connected = false;
  collectives_->connect(2, [&](Status status) { connected = status.ok(); });
  ++attempt_;
  start(2);
  device_.run();
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_TRUE(connected);
  EXPECT_EQ(code(1), Code::kAborted);
  EXPECT_EQ(code(2), Code::kOk);
}

TEST_F(NcclCollectivesTest, ClosesInOrderIfNothingIsInFlight) {
  connect();
  bool closed = false;
  collectives_->close([&](const Status& status) { closed = status.ok(); });
  start(1);
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 2);
  EXPECT_EQ(nccl_.alive(), 0);
  EXPECT_EQ(code(1), Code::kShutdown);
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
