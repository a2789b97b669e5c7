#include "runtime/net/device/nccl/nccl_collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "runtime/net/device/nccl/calls.h"
#include "tests/unit/net/device/nccl/nccl_collectives_fixture.h"

namespace sirtaki::net::nccl {
namespace {

TEST_F(NcclCollectivesTest, ConnectsACommunicatorOfTheJob) {
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kShutdown);
  connect();
  EXPECT_EQ(ids_.keys(), std::vector<std::string>{"job"});
  EXPECT_TRUE(collectives_->caps().ordered);
}

TEST_F(NcclCollectivesTest, ReportsWhyItIsNotConnected) {
  NcclOptions options;
  options.host_size = 2;
  make(options);
  nccl_.will_return("init", {Outcome::kSuccess, Outcome::kRemoteError});
  Status connected;
  collectives_->connect_set(kJobSet, [&](Status status) { connected = std::move(status); });
  EXPECT_TRUE(loop_.run([&] { return !connected.ok(); }));
  EXPECT_EQ(connected.code(), Code::kPeerLost);
  start(1);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kPeerLost);
  EXPECT_EQ(nccl_.alive(), 0) << "all or none";
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

TEST_F(NcclCollectivesTest, WaitsForTheInputOnTheDevice) {
  const device::Event ready = *device_.make_event();
  connect();
  device_.hold();
  ASSERT_TRUE(device_.record(ready, stream_).ok());
  start(1, {.ready = ready});
  run_briefly();
  EXPECT_EQ(collectives_->waiting(), 0U) << "it is on the stream, though its input is not ready";
  EXPECT_FALSE(ends_.contains(1));
  device_.run();
  EXPECT_TRUE(wait(1));
  device_.destroy(ready);
}

TEST_F(NcclCollectivesTest, DividesAnAverageThatNcclDoesNotCompute) {
  connect();
  const std::int32_t whole[] = {6, 8};
  std::memcpy(memory_, whole, sizeof whole);
  start(1, {}, ReduceOp::kAverage, DType::kI32);
  EXPECT_TRUE(wait(1));
  std::int32_t result[2];
  std::memcpy(result, memory_, sizeof result);
  EXPECT_EQ(result[0], 3);
  EXPECT_EQ(result[1], 4);
}

TEST_F(NcclCollectivesTest, LeavesAnAverageToNccl) {
  connect();
  start(1, {}, ReduceOp::kAverage);
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(memory_[0], 6) << "the fake does nothing, and no kernel follows";
}

TEST_F(NcclCollectivesTest, NcclAveragesWhereItsResultIsThatOfASumAndADivision) {
  CollectiveArgs args;
  args.op = ReduceOp::kAverage;
  const auto averages = [&](DType dtype, int size, double divisor = 0) {
    args.dtype = dtype;
    args.divisor = divisor;
    return averages_itself(args, size);
  };
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    EXPECT_TRUE(averages(dtype, 1) && averages(dtype, 2) && averages(dtype, 64));
    EXPECT_FALSE(averages(dtype, 3) || averages(dtype, 6)) << "a third is rounded before the sum";
    EXPECT_FALSE(averages(dtype, 4, 2)) << "another divisor";
  }
  EXPECT_TRUE(averages(DType::kF16, 3) && averages(DType::kBF16, 3)) << "the sum might overflow";
  EXPECT_FALSE(averages(DType::kF16, 4, 2));
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    EXPECT_FALSE(averages(dtype, 2));
  }
  args.op = ReduceOp::kSum;
  EXPECT_FALSE(averages(DType::kF32, 2));
}

TEST_F(NcclCollectivesTest, LaunchesInTheOrderOfStarts) {
  connect();
  nccl_.polls = 3;
  device_.hold();
  const auto before = nccl_.calls().size();
  for (std::uint64_t tag = 1; tag <= 4; ++tag) {
    start(tag);
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

TEST_F(NcclCollectivesTest, LaunchesAGroupAtOnce) {
  connect();
  device_.hold();
  for (std::uint64_t tag = 1; tag <= 5; ++tag) {
    start(tag, tag < 5 ? with_more() : DeviceWork());
    EXPECT_EQ(nccl_.count("group_start"), tag < 5 ? 0 : 1) << "it waits for the rest";
  }
  run_briefly();
  EXPECT_EQ(nccl_.count("all_reduce"), 5);
  EXPECT_EQ(nccl_.count("group_end"), 1) << "NCCL starts a thread for each";
  EXPECT_EQ(device_.queued(), 1U) << "one event for all";
  EXPECT_EQ(collectives_->waiting(), 0U);
  EXPECT_EQ(collectives_->bytes_in_flight(), 5 * sizeof(memory_));
  device_.run();
  for (std::uint64_t tag = 1; tag <= 5; ++tag) {
    EXPECT_TRUE(wait(tag));
    EXPECT_EQ(code(tag), Code::kOk);
  }
}

TEST_F(NcclCollectivesTest, CreditDelaysAGroupAndNeverCutsIt) {
  NcclOptions options;
  options.credit_bytes = 20;
  make(options);
  connect();
  device_.hold();
  start(1);
  start(2, with_more());
  start(3);
  run_briefly();
  EXPECT_EQ(nccl_.count("all_reduce"), 1);
  EXPECT_EQ(collectives_->waiting(), 1U);
  device_.run();
  EXPECT_TRUE(wait(3));
  EXPECT_EQ(nccl_.count("group_end"), 2);
}

TEST_F(NcclCollectivesTest, AnEndReachesAGroupThatIsNotComplete) {
  connect();
  start(1, with_more());
  collectives_->abort({Code::kAborted, "test"});
  EXPECT_TRUE(wait(1));
  EXPECT_EQ(code(1), Code::kAborted);
}

TEST_F(NcclCollectivesTest, SumsOfAHostHaveACommunicatorAndTheStreamOfAll) {
  NcclOptions options;
  options.host_size = 2;
  make(options);
  connect();
  EXPECT_EQ(ids_.keys(), std::vector<std::string>{"job"});
  EXPECT_EQ(host_ids_.keys(), std::vector<std::string>{"host"});
  const device::Event ready = *device_.make_event();
  device_.hold();
  ASSERT_TRUE(device_.record(ready, stream_).ok());
  DeviceWork first;
  first.ready = ready;
  start(10, std::move(first));
  start(11, on_host());
  run_briefly();
  EXPECT_EQ(device_.queued(), 4U) << "a record of the test; a wait and two ends";
  EXPECT_EQ(nccl_.count("all_reduce"), 2);
  device_.run();
  EXPECT_TRUE(wait(10) && wait(11));
  EXPECT_EQ(code(11), Code::kOk);
  start(12, on_host(), ReduceOp::kAverage);
  EXPECT_TRUE(wait(12));
  EXPECT_EQ(code(12), Code::kInvalidArgument) << "sums only";
  bool closed = false;
  collectives_->close([&](const Status& status) { closed = status.ok(); });
  EXPECT_TRUE(loop_.run([&] { return closed; }));
  EXPECT_EQ(nccl_.count("finalize"), 2);
  device_.destroy(ready);
}

TEST_F(NcclCollectivesTest, ARankThatIsAloneOnItsHostTakesPartInTheOrder) {
  NcclOptions options;
  options.host_size = 1;
  make(options);
  connect();
  EXPECT_TRUE(host_ids_.keys().empty());
  start(1, on_host());
  start(2);
  EXPECT_TRUE(wait(1) && wait(2));
  EXPECT_EQ(code(1), Code::kOk);
  EXPECT_EQ(nccl_.count("all_reduce"), 1);
  EXPECT_EQ(memory_[0], 6) << "its sum is its own";
}

TEST_F(NcclCollectivesTest, RejectsSumsOfAHostWithoutAGroup) {
  connect();
  start(1, on_host());
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
  start(6);
  run_briefly();
  EXPECT_EQ(collectives_->waiting(), 4U) << "no operation overtakes a waiting one";
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
  collectives_->start(args, [&](Status status) { ended = status.ok(); });
  EXPECT_FALSE(ended) << "called from inside";
  EXPECT_TRUE(loop_.run([&] { return ended; }));
  EXPECT_EQ(nccl_.count("group_start"), 0);
}

}  // namespace
}  // namespace sirtaki::net::nccl
