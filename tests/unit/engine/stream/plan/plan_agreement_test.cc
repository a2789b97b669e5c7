#include "runtime/engine/stream/plan/plan_agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/scheduler/plan/plans.h"

namespace sirtaki::engine {
namespace {

using std::chrono::milliseconds;

class CountingClock : public Loop {
 public:
  TimePoint now() const override {
    ++reads_;
    return now_;
  }
  void pass(Duration time) { now_ += time; }
  int reads() const { return reads_; }
  bool in_loop() const override { return true; }
  void post(Task /*task*/) override {}
  TimerId after(Duration /*delay*/, Task /*task*/) override { return TimerId(1); }
  void cancel(TimerId /*timer*/) override {}

 private:
  mutable int reads_ = 0;
  TimePoint now_;
};

class PlanAgreementTest : public testing::Test {
 protected:
  PlanAgreement make_agreement(bool frozen = false, const std::string& name = "s") {
    scheduler::ReplannerOptions options;
    options.frozen = frozen;
    options.planner.ranks = 2;
    return {name,
            scheduler::make_plan({{"a", 100, DType::kF32}, {"b", 100, DType::kF32}}),
            {1, 0},
            {options, nullptr},
            {clock_, trace_, stats_}};
  }
  // Runs a step of the program under `agreement`; returns the number of times that it read the clock.
  int measure(PlanAgreement& agreement) {
    const int before = clock_.reads();
    agreement.ready(0, at(milliseconds(1)));
    agreement.partition_started();
    agreement.partition_done(agreement.plan()->partitions().front(), {400, 2});
    agreement.finished(at(milliseconds(2)));
    agreement.notified(board_, at(milliseconds(3)), at(milliseconds(4)));
    return clock_.reads() - before;
  }
  static TimePoint at(Duration since) { return TimePoint(since); }
  // Passes steps without an exchange; returns the values of the first one that carries them.
  std::vector<std::int64_t> next_exchange() {
    for (int tries = 0; tries < 100; ++tries) {
      std::vector<std::int64_t> mine = agreement_.exchange(++step_, true);
      if (!mine.empty()) {
        return mine;
      }
      pass({});
    }
    return {};
  }
  void pass(const std::vector<std::int64_t>& reduced) {
    agreement_.decide(step_, reduced);
    agreement_.consider(step_);
  }

  CountingClock clock_;
  Timeline timeline_{0, "test"};
  Trace trace_{clock_, timeline_};
  Stats stats_;
  StreamBoard board_{2};
  PlanAgreement agreement_ = make_agreement();
  std::uint64_t step_ = 0;
};

// This rank proposes nothing without a link, but a rank that proposes needs its digest.
TEST_F(PlanAgreementTest, EveryProfileIsFollowedByTheDigestOfTheDecision) {
  const std::vector<std::int64_t> profile = next_exchange();
  ASSERT_GT(profile.size(), 2U);
  const std::uint64_t of_profile = step_;
  pass(profile);
  const std::vector<std::int64_t> digest = next_exchange();
  EXPECT_EQ(step_, of_profile + 1);
  const auto mine = static_cast<std::int64_t>(agreement_.plan()->digest());
  EXPECT_EQ(digest, (std::vector<std::int64_t>{mine, ~mine}));
  pass(digest);
  EXPECT_EQ(stats_.counter("streams.plans_rejected").value(), 0U);
}

TEST_F(PlanAgreementTest, ARankThatDecidedOtherwiseEndsReplanning) {
  pass(next_exchange());
  std::vector<std::int64_t> digest = next_exchange();
  digest[0] = std::max(digest[0], std::int64_t{42});
  digest[1] = std::max(digest[1], ~std::int64_t{42});
  pass(digest);
  EXPECT_EQ(stats_.counter("streams.plans_rejected").value(), 1U);
  EXPECT_TRUE(next_exchange().empty());
}

TEST_F(PlanAgreementTest, GaugesAreOfOneStreamAndCountersOfAll) {
  PlanAgreement other = make_agreement(false, "other");
  const auto exchange_profile = [](PlanAgreement& agreement, std::int64_t step_us) {
    ASSERT_FALSE(agreement.exchange(3, true).empty());
    scheduler::StepProfile profile;
    profile.ready_us = {0, 0};
    profile.step_us = step_us;
    agreement.decide(3, scheduler::to_max_vector(profile));
    agreement.consider(3);
  };
  exchange_profile(agreement_, 5000);
  exchange_profile(other, 7000);
  EXPECT_EQ(stats_.gauge("streams.s.measured_step_us").value(), 5000);
  EXPECT_EQ(stats_.gauge("streams.other.measured_step_us").value(), 7000);
  EXPECT_EQ(stats_.gauge("streams.s.plan_version").value(), 1);
  EXPECT_EQ(stats_.counter("streams.profiles").value(), 2U);
  JsonWriter json;
  other.decisions().write(json);
  EXPECT_NE(json.text().find(R"("step":3,"reason":")"), std::string::npos) << json.text();
}

class Lines final : public LogSink {
 public:
  explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}
  void write(LogLevel /*level*/, std::string_view line) override { lines_.emplace_back(line); }

 private:
  std::vector<std::string>& lines_;
};

// A policy that changes nothing.
class Steady final : public scheduler::CodecController {
 public:
  explicit Steady(bool by_link) : by_link_(by_link) {}
  bool begins_by_link() const override { return by_link_; }
  std::optional<std::vector<scheduler::PlannedTensor>> consider(
      std::uint64_t /*step*/, const scheduler::StepProfile& /*profile*/,
      const std::vector<scheduler::PlannedTensor>& /*now*/) override {
    return std::nullopt;
  }
  const std::string& last_decision() const override { return decision_; }
  void restart() override {}

 private:
  const bool by_link_;
  const std::string decision_ = "steady";
};

TEST_F(PlanAgreementTest, ALinkThatStaysUnknownIsSaidOnce) {
  struct Case {
    Rank rank;
    bool by_link;
    bool measured;
    std::size_t lines;
    bool compresses = false;
  };
  for (const Case& c : {Case{0, true, false, 1},
                        {1, true, false, 0},
                        {0, false, false, 0},
                        {0, true, true, 0},
                        {0, true, false, 1, true}}) {
    SCOPED_TRACE("rank " + std::to_string(c.rank) + (c.by_link ? ", by the link" : "") +
                 (c.measured ? ", measured" : "") + (c.compresses ? ", compressed" : ""));
    std::vector<std::string> lines;
    LoggerOptions logging;
    logging.level = LogLevel::kInfo;
    Logger log(logging, std::make_unique<Lines>(lines));
    scheduler::ReplannerOptions options;
    options.planner.ranks = 2;
    scheduler::Decision decision;
    if (c.compresses) {
      decision.codec = CodecId::kInt8;
      decision.reduction = ReductionKind::kScatter;
    }
    PlanAgreement agreement("s", scheduler::make_plan({{"a", 100, DType::kF32, decision}, {"b", 100, DType::kF32}}),
                            {1, 0}, {options, std::make_unique<Steady>(c.by_link), {}, c.rank, 2},
                            {clock_, trace_, stats_, &log});
    for (std::uint64_t step = 0; step < 400; ++step) {
      std::vector<std::int64_t> values = agreement.exchange(step, true);
      if (c.measured && values.size() > 2) {
        scheduler::StepProfile profile;
        profile.ready_us = {0, 0};
        profile.latency_ns = 100'000;
        profile.bytes_per_second = 1'000'000'000;
        values = scheduler::to_max_vector(profile);
      }
      agreement.decide(step, values);
      agreement.consider(step);
      if (step == 20) {
        agreement.restart();
      }
    }
    ASSERT_EQ(lines.size(), c.lines);
    if (c.lines > 0) {
      EXPECT_NE(lines[0].find("stream 's' keeps plan 1, because its transfers are too few or too short to measure the "
                              "link"),
                std::string::npos)
          << lines[0];
      const std::size_t advice = lines[0].find("; if steps wait for gradients, name a codec, such as int8");
      EXPECT_EQ(advice == std::string::npos, c.compresses) << lines[0];
    }
  }
}

TEST_F(PlanAgreementTest, NothingIsMeasuredIfNoOtherPlanCanFollow) {
  EXPECT_GT(measure(agreement_), 0);
  PlanAgreement frozen = make_agreement(true);
  EXPECT_EQ(measure(frozen), 0);
  pass(next_exchange());
  next_exchange();
  pass({1, 1});  // two digests
  EXPECT_EQ(measure(agreement_), 0);
}

// Sends each partition alone over a link of 10 MB/s with a latency of 1 ms, `sent` times its size in bytes in so many
// exchanges, of which `told` are those of allreduces; returns the profile.
scheduler::StepProfile profile_of(PlanAgreement agreement, CountingClock& clock, net::Traffic sent, bool told) {
  for (int step = 0; step < 8; ++step) {
    for (const scheduler::Partition& partition : agreement.plan()->partitions()) {
      const net::Traffic traffic{sent.bytes * static_cast<double>(partition.wire_bytes), sent.exchanges};
      agreement.partition_started();
      clock.pass(traffic.exchanges * milliseconds(1) + std::chrono::nanoseconds(std::llround(100 * traffic.bytes)));
      agreement.partition_done(partition, told ? traffic : net::Traffic{});
      clock.pass(milliseconds(1));
    }
  }
  const auto profile = scheduler::from_max_vector(agreement.exchange(3, true), 2);
  EXPECT_TRUE(profile) << profile.status().to_string();
  return profile ? *profile : scheduler::StepProfile{};
}

// Three hosts whose ranks sum first.
TEST_F(PlanAgreementTest, MeasuresTheLinkWhicheverWayPartitionsGo) {
  struct Case {
    ReductionKind reduction;
    net::Traffic sent;  // bytes: for one byte of the partition
    bool told = true;
  };
  constexpr double kTwice = 4.0 / 3;
  for (const Case& one :
       {Case{ReductionKind::kDense, {kTwice, 2}}, Case{ReductionKind::kDense, {32, 1}},
        Case{ReductionKind::kLowRank, {kTwice, 4}}, Case{ReductionKind::kLowRank, {32, 2}},
        Case{ReductionKind::kShared, {2, 3}}, Case{ReductionKind::kGather, {kTwice, 1}, false},
        Case{ReductionKind::kScatter, {kTwice, 2}, false}, Case{ReductionKind::kCounts, {kTwice, 3}, false},
        Case{ReductionKind::kRing, {kTwice, 4}, false}}) {
    scheduler::PlannedTensor small{"a", 100, DType::kF32};
    scheduler::PlannedTensor large{"b", 1500, DType::kF32};
    for (scheduler::PlannedTensor* tensor : {&small, &large}) {
      tensor->decision.reduction = one.reduction;
      tensor->wire_bytes = tensor->numel;
    }
    PlanAgreementOptions options;
    options.replanner.planner.ranks = 3;
    options.ranks = 12;
    const scheduler::StepProfile profile = profile_of(PlanAgreement("way", scheduler::make_plan({small, large}), {1, 0},
                                                                    std::move(options), {clock_, trace_, stats_}),
                                                      clock_, one.sent, one.told);
    const std::string what = std::string(reduction_name(one.reduction)) + ", " + std::to_string(one.sent.exchanges);
    EXPECT_NEAR(static_cast<double>(profile.latency_ns), 1e6, 1e4) << what;
    EXPECT_NEAR(static_cast<double>(profile.bytes_per_second), 1e7, 1e5) << what;
  }
}

TEST_F(PlanAgreementTest, AfterAStepGivenUpAProfileCarriesTheObjection) {
  pass(next_exchange());
  next_exchange();
  pass({1, 1});  // two digests
  agreement_.restart();
  step_ = 0;
  EXPECT_EQ(measure(agreement_), 0);
  const std::vector<std::int64_t> profile = next_exchange();
  const auto received = scheduler::from_max_vector(profile, 2);
  ASSERT_TRUE(received) << received.status().to_string();
  EXPECT_EQ(received->objection, static_cast<std::int64_t>(scheduler::Objection::kRanksDiffer));
  pass(profile);
  pass(next_exchange());  // the digest
  EXPECT_TRUE(next_exchange().empty());
}

TEST_F(PlanAgreementTest, NothingIsMeasuredAfterAnInvalidProfile) {
  std::vector<std::int64_t> profile = next_exchange();
  profile[0] += 1;  // another format
  pass(profile);
  EXPECT_EQ(measure(agreement_), 0);
  EXPECT_FALSE(next_exchange().empty());  // the digest
  EXPECT_TRUE(next_exchange().empty());
}

TEST_F(PlanAgreementTest, AGivenUpStepTakesTheDigestWithIt) {
  pass(next_exchange());
  agreement_.restart();
  step_ = 0;
  EXPECT_GT(next_exchange().size(), 2U);
  EXPECT_GT(step_, 1U);
}

}  // namespace
}  // namespace sirtaki::engine
