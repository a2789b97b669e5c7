#include "scheduler/plan/step_model.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// Two ranks, so a payload takes its bytes over the bandwidth: 1 ms for 1000 bytes. No latency unless a test sets one,
// and two exchanges for each allreduce.
struct TwoRanks {
  StepProfile profile;
  PlannerOptions options;

  TwoRanks() {
    profile.ready_us = {0, 0};
    profile.need_us = {0, 0};
    profile.latency_ns = 0;
    profile.bytes_per_second = 1'000'000;
    options.ranks = 2;
  }
  StepModel model(std::int64_t exchange_bytes = 0) const { return {profile, options, exchange_bytes}; }
};

TEST(StepModel, TakesTwoHalvesOfAllReduceFromEveryByte) {
  TwoRanks s;
  EXPECT_EQ(s.model().occupancy(1000), kMs);
  s.options.ranks = 4;
  EXPECT_EQ(s.model().occupancy(1000), kMs * 3 / 2);
  s.options.ranks = 1;
  EXPECT_EQ(s.model().occupancy(1000), 0);
}

TEST(StepModel, AStepWithoutJobsIsItsComputing) {
  TwoRanks s;
  s.profile.backward_us = 2000;
  s.profile.forward_us = 1000;
  EXPECT_EQ(s.model().run({}, 1), (Prediction{3000, 0, 0}));
}

TEST(StepModel, JobsGoOneAfterTheOther) {
  TwoRanks s;
  s.profile.backward_us = 3000;
  s.profile.forward_us = 1000;
  const Job jobs[] = {{1000, 0, 3 * kMs}, {1000, 0, 3 * kMs}, {1500, 3 * kMs, 3 * kMs}};
  EXPECT_EQ(s.model().run(jobs, 1 << 20), (Prediction{5500, 1500, 4500}));
}

TEST(StepModel, ALaterJobWaitsForAnEarlierOneThatIsNotReady) {
  const TwoRanks s;
  const Job jobs[] = {{1000, 5 * kMs, 100 * kMs}, {1000, 0, 100 * kMs}};
  std::vector<std::int64_t> done;
  s.model().run(jobs, 1000, &done);
  EXPECT_EQ(done, (std::vector<std::int64_t>{6 * kMs, 7 * kMs}));
}

TEST(StepModel, WhatIsReadyLastWaitsForTheEndOfBackward) {
  TwoRanks s;
  s.profile.backward_us = 10'000;
  const Job jobs[] = {{1000, 0, 10 * kMs}, {1000, 5 * kMs, 10 * kMs}, {1000, 0, 10 * kMs}};
  std::vector<std::int64_t> done;
  s.model().run(jobs, 1000, &done);
  EXPECT_EQ(done, (std::vector<std::int64_t>{kMs, 11 * kMs, 12 * kMs}));
}

TEST(StepModel, ASecondHalfQueuesBehindWhatWasStartedMeanwhile) {
  const TwoRanks s;
  const Job jobs[] = {{1000, 0, 0}, {4000, 0, 0}};
  std::vector<std::int64_t> done;
  s.model().run(jobs, 5000, &done);
  EXPECT_EQ(done, (std::vector<std::int64_t>{3 * kMs, 5 * kMs}));
  s.model().run(jobs, 4000, &done);
  EXPECT_EQ(done, (std::vector<std::int64_t>{kMs, 5 * kMs})) << "no credit for both at a time";
}

TEST(StepModel, CreditHidesLatencyOrNot) {
  TwoRanks s;
  s.profile.latency_ns = kMs;  // a partition is done 2 ms after its last byte
  const Job jobs[] = {{1000, 0, 0}, {1000, 0, 0}, {1000, 0, 0}};
  const std::int64_t handling = s.model().handling();
  EXPECT_GT(handling, 0);
  std::vector<std::int64_t> done;
  s.model().run(jobs, 3000, &done);
  EXPECT_EQ(done.back(), 3 * kMs + 3 * handling + kMs) << "that of the first halves passes while others are sent";
  done.clear();
  s.model().run(jobs, 1000, &done);
  EXPECT_EQ(done.back(), 3 * (kMs + handling + 2 * kMs));
  done.clear();
  s.model().run(jobs, 1, &done);
  EXPECT_EQ(done.back(), 3 * (kMs + handling + 2 * kMs)) << "larger than the credit goes alone";
}

TEST(StepModel, CountsALatencyForEachExchange) {
  TwoRanks s;
  s.profile.latency_ns = 20 * kMs;
  const auto end_of = [&](ReductionKind reduction, std::int64_t exchange_bytes) {
    Job job{1000, 0, 0};
    job.reduction = reduction;
    const StepModel model = s.model(exchange_bytes);
    return model.run({&job, 1}, 1 << 20).done_us * 1000 - kMs - model.handling();
  };
  EXPECT_EQ(end_of(ReductionKind::kGather, 0), 20 * kMs);
  EXPECT_EQ(end_of(ReductionKind::kDense, 999), 40 * kMs);
  EXPECT_EQ(end_of(ReductionKind::kDense, 1000), 20 * kMs);
  EXPECT_EQ(end_of(ReductionKind::kScatter, 1000), 40 * kMs) << "no allreduce";
  EXPECT_EQ(end_of(ReductionKind::kCounts, 1000), 60 * kMs);
  EXPECT_EQ(end_of(ReductionKind::kLowRank, 999), 80 * kMs);
  EXPECT_EQ(end_of(ReductionKind::kLowRank, 1000), 40 * kMs) << "two allreduces";
  s.options.exchange_bytes = 1000;
  EXPECT_EQ(end_of(ReductionKind::kDense, kAnySize), 20 * kMs) << "the limit of the backend";
  s.options.exchange_bytes = 999;
  EXPECT_EQ(end_of(ReductionKind::kDense, kAnySize), 40 * kMs);
}

TEST(StepModel, OneExchangeSendsAllToAll) {
  TwoRanks s;
  Job job{1000, 0, 0};
  EXPECT_EQ(s.model(1000).occupancy(job), kMs);
  s.options.ranks = 4;
  EXPECT_EQ(s.model(999).occupancy(job), kMs * 3 / 2);
  EXPECT_EQ(s.model(1000).occupancy(job), 3 * kMs);
  job.reduction = ReductionKind::kGather;
  EXPECT_EQ(s.model(1000).occupancy(job), kMs * 3 / 2) << "its payload counts all it sends";
}

TEST(StepModel, TwoHostsSendTheSharesOfTheirSumsAtOnce) {
  TwoRanks s;
  s.profile.latency_ns = 20 * kMs;
  s.options.ranks_per_host = 2;
  s.options.exchange_bytes = 0;
  for (const auto& [payload, exchanges, wire] :
       std::vector<std::array<std::int64_t, 3>>{{1000, 1, 4 * kMs}, {2000, 1, 2 * kMs}, {2001, 2, 2 * kMs + 1000}}) {
    const Job job{payload, 0, 0};
    EXPECT_EQ(s.model(1000).exchanges(job), exchanges) << payload;
    EXPECT_EQ(s.model(1000).occupancy(job), wire) << payload;
  }
}

TEST(StepModel, AnOperationOfOneExchangeDoesNotWaitForAnEarlierOneOfFour) {
  TwoRanks s;
  s.profile.latency_ns = 20 * kMs;
  Job jobs[] = {{1000, 0, 0}, {1000, 0, 0}};
  jobs[0].reduction = ReductionKind::kLowRank;
  jobs[1].reduction = ReductionKind::kGather;
  std::vector<std::int64_t> done;
  const std::int64_t handling = s.model().handling();
  s.model().run(jobs, 1 << 20, &done);
  EXPECT_EQ(done[1], kMs / 2 + handling / 2 + kMs + handling + 20 * kMs);
  EXPECT_EQ(done[0], kMs + handling + 80 * kMs);
}

// The decoding of a job that arrives late does not hold up the encoding of one that is ready before.
TEST(StepModel, TheWorkerWorksInTheOrderOfTime) {
  TwoRanks s;
  s.profile.latency_ns = 20 * kMs;
  Job jobs[] = {{1000, 0, 0, kMs, kMs}, {1000, 25 * kMs, 0, kMs, kMs}};
  jobs[0].reduction = jobs[1].reduction = ReductionKind::kScatter;
  s.profile.backward_us = 25'000;
  std::vector<std::int64_t> done;
  const std::int64_t handling = s.model().handling();
  s.model().run(jobs, 1 << 20, &done);
  EXPECT_EQ(done[0], kMs + kMs + handling + 40 * kMs + kMs);
  EXPECT_EQ(done[1], 25 * kMs + kMs + kMs + handling + 40 * kMs + kMs);
}

TEST(StepModel, NeedsCountOnlyWithForwardOverlap) {
  TwoRanks s;
  s.profile.backward_us = 1000;
  s.profile.forward_us = 500;
  s.profile.need_us = {200, StepProfile::kUnknown};
  EXPECT_EQ(s.model().need(0), kMs);
  s.options.forward = true;
  EXPECT_EQ(s.model().need(0), kMs + 200'000);
  EXPECT_EQ(s.model().need(1), kMs + 500'000) << "waited for at the end";
  s.profile.need_us[0] = 900;
  EXPECT_EQ(s.model().need(0), kMs + 500'000);
}

TEST(StepModel, StaysWithinSixtyFourBits) {
  TwoRanks s;
  s.options.ranks = 65536;
  s.profile.backward_us = s.profile.forward_us = std::int64_t{1} << 40;
  s.profile.ready_us = {std::int64_t{1} << 40, 0};
  s.profile.latency_ns = std::int64_t{1} << 40;
  s.profile.bytes_per_second = 1;
  const Job job{std::int64_t{1} << 61, s.model().ready(0), 0};
  const std::vector<Job> jobs(1 << 20, job);
  const Prediction prediction = s.model().run(jobs, std::int64_t{1} << 62);
  EXPECT_GT(prediction.done_us, std::int64_t{1} << 50);
  EXPECT_GE(prediction.step_us, prediction.exposed_us);
  EXPECT_GE(prediction.exposed_us, prediction.done_us);
}

}  // namespace
}  // namespace sirtaki::scheduler
