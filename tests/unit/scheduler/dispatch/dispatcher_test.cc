#include "scheduler/dispatch/dispatcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/unit/scheduler/plan/plans.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kPlenty = 1 << 30;

std::shared_ptr<const Plan> two_big() {
  return make_plan({{"a", 1000}, {"b", 1000}});
}

std::vector<int> drain(Dispatcher& dispatcher) {
  std::vector<int> started;
  while (const Partition* partition = dispatcher.next()) {
    started.push_back(partition->position);
  }
  return started;
}

TEST(Dispatcher, StartsPartitionsInThePlansOrder) {
  Dispatcher dispatcher(kPlenty);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  EXPECT_EQ(dispatcher.tensor_ready(1).value(), std::vector<int>{1});
  EXPECT_EQ(dispatcher.next(), nullptr) << "partition 0 is not ready and 1 must not overtake it";
  EXPECT_EQ(dispatcher.tensor_ready(0).value(), std::vector<int>{0});
  EXPECT_EQ(drain(dispatcher), (std::vector<int>{0, 1}));
}

TEST(Dispatcher, HoldsBackWhatExceedsTheCredit) {
  Dispatcher dispatcher(7999);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  ASSERT_TRUE(dispatcher.tensor_ready(1));
  EXPECT_EQ(drain(dispatcher), std::vector<int>{0});
  EXPECT_EQ(dispatcher.credit().in_flight_bytes(), 4000);
  ASSERT_TRUE(dispatcher.finished(0).ok());
  EXPECT_EQ(drain(dispatcher), std::vector<int>{1});
}

TEST(Dispatcher, SendsAPartitionLargerThanTheCreditAlone) {
  Dispatcher dispatcher(10);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  ASSERT_TRUE(dispatcher.tensor_ready(1));
  EXPECT_EQ(drain(dispatcher), std::vector<int>{0});
  ASSERT_TRUE(dispatcher.finished(0).ok());
  EXPECT_EQ(drain(dispatcher), std::vector<int>{1});
}

TEST(Dispatcher, CountsCreditInPayloadBytes) {
  Dispatcher dispatcher(100);
  PlannedTensor a{"a", 1000};
  PlannedTensor b{"b", 1000};
  a.decision = b.decision = {CodecId::kTwobit, ReductionKind::kScatter, {}};
  a.stripe = b.stripe = 1000;
  a.wire_bytes = 50;
  b.wire_bytes = 50;
  PlanParts parts;
  parts.tensors = {a, b};
  for (int i = 0; i < 2; ++i) {
    Partition partition;
    partition.numel = 1000;
    partition.format = a.decision.format();
    partition.slices = {{i, 0, 1000, 0}};
    parts.partitions.push_back(partition);
  }
  ASSERT_TRUE(dispatcher.adopt(Plan::from_partitions(std::move(parts)).value()).ok());
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  ASSERT_TRUE(dispatcher.tensor_ready(1));
  EXPECT_EQ(drain(dispatcher), (std::vector<int>{0, 1}));
  EXPECT_EQ(dispatcher.credit().in_flight_bytes(), 100);
}

TEST(Dispatcher, DoesNothingWithoutAPlan) {
  Dispatcher dispatcher(100);
  EXPECT_EQ(dispatcher.adopt(nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(dispatcher.plan(), nullptr);
  EXPECT_EQ(dispatcher.tensor_ready(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(dispatcher.next(), nullptr);
}

TEST(Dispatcher, RunsStepAfterStep) {
  Dispatcher dispatcher(kPlenty);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(dispatcher.tensor_ready(0));
    EXPECT_EQ(dispatcher.tensor_ready(0).status().code(), Code::kInvalidArgument) << "twice in one step";
    ASSERT_TRUE(dispatcher.tensor_ready(1));
    EXPECT_EQ(drain(dispatcher), (std::vector<int>{0, 1}));
    EXPECT_EQ(dispatcher.step_done().code(), Code::kBug) << "two are in flight";
    ASSERT_TRUE(dispatcher.finished(1).ok());
    ASSERT_TRUE(dispatcher.finished(0).ok());
    EXPECT_TRUE(dispatcher.step_complete());
    ASSERT_TRUE(dispatcher.step_done().ok());
    EXPECT_FALSE(dispatcher.step_complete());
  }
}

TEST(Dispatcher, RefusesToFinishWhatIsNotInFlight) {
  Dispatcher dispatcher(kPlenty);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  EXPECT_EQ(dispatcher.finished(0).code(), Code::kBug);
  EXPECT_EQ(dispatcher.finished(-1).code(), Code::kBug);
  EXPECT_EQ(dispatcher.finished(2).code(), Code::kBug);
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  ASSERT_NE(dispatcher.next(), nullptr);
  ASSERT_TRUE(dispatcher.finished(0).ok());
  EXPECT_EQ(dispatcher.finished(0).code(), Code::kBug);
  EXPECT_EQ(dispatcher.step_done().code(), Code::kBug) << "partition 1 never started";
}

TEST(Dispatcher, AdoptsAPlanOnlyAtAStepBorder) {
  Dispatcher dispatcher(kPlenty);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  ASSERT_TRUE(dispatcher.tensor_ready(1));
  EXPECT_EQ(dispatcher.adopt(two_big()).code(), Code::kBug);
  dispatcher.reset();
  const auto other = make_plan({{"a", 10}});
  ASSERT_TRUE(dispatcher.adopt(other).ok());
  EXPECT_EQ(dispatcher.plan(), other.get());
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  EXPECT_EQ(drain(dispatcher), std::vector<int>{0});
}

std::shared_ptr<const Plan> two_big_with_credit(std::int64_t credit_bytes) {
  PlanParts parts;
  parts.tensors = two_big()->tensors();
  parts.partitions = two_big()->partitions();
  parts.credit_bytes = credit_bytes;
  return Plan::from_partitions(std::move(parts)).value();
}

TEST(Dispatcher, TakesThePlansCreditBelowItsOwn) {
  Dispatcher dispatcher(8000);
  for (const auto& [asked, limit] :
       {std::pair<std::int64_t, std::int64_t>{5000, 5000}, {9000, 8000}, {0, 8000}, {7999, 7999}}) {
    ASSERT_TRUE(dispatcher.adopt(two_big_with_credit(asked)).ok());
    EXPECT_EQ(dispatcher.credit().limit_bytes(), limit);
    ASSERT_TRUE(dispatcher.tensor_ready(0));
    ASSERT_TRUE(dispatcher.tensor_ready(1));
    EXPECT_EQ(drain(dispatcher).size(), limit == 8000 ? 2U : 1U);
    dispatcher.reset();
  }
}

TEST(Dispatcher, StartsAfreshAfterAReset) {
  Dispatcher dispatcher(4000);
  ASSERT_TRUE(dispatcher.adopt(two_big()).ok());
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  ASSERT_TRUE(dispatcher.tensor_ready(1));
  EXPECT_EQ(drain(dispatcher), std::vector<int>{0});
  dispatcher.reset();
  EXPECT_EQ(dispatcher.credit().in_flight_bytes(), 0);
  EXPECT_EQ(dispatcher.finished(0).code(), Code::kBug) << "the aborted step's partitions are forgotten";
  EXPECT_EQ(dispatcher.next(), nullptr);
  ASSERT_TRUE(dispatcher.tensor_ready(0));
  EXPECT_EQ(drain(dispatcher), std::vector<int>{0});
}

TEST(Dispatcher, CompletesAPlanWithoutPartitionsAtOnce) {
  Dispatcher dispatcher(kPlenty);
  ASSERT_TRUE(dispatcher.adopt(make_plan({{"none", 0}})).ok());
  EXPECT_EQ(dispatcher.tensor_ready(0).value(), std::vector<int>{});
  EXPECT_TRUE(dispatcher.step_complete());
  EXPECT_TRUE(dispatcher.step_done().ok());
}

// A rank whose tensors become ready, and whose partitions finish, in an order of its own.
class SimulatedRank {
 public:
  SimulatedRank(const std::shared_ptr<const Plan>& plan, std::int64_t credit, std::uint64_t seed)
      : random_(seed), dispatcher_(credit) {
    EXPECT_TRUE(dispatcher_.adopt(plan).ok());
  }

  std::vector<int> run_step() {
    const Plan& plan = *dispatcher_.plan();
    std::vector<int> unready(plan.tensors().size());
    for (std::size_t i = 0; i < unready.size(); ++i) {
      unready[i] = static_cast<int>(i);
    }
    std::shuffle(unready.begin(), unready.end(), random_);
    std::vector<int> started;
    std::vector<int> in_flight;
    while (!unready.empty() || !in_flight.empty()) {
      if (in_flight.empty() || (!unready.empty() && random_() % 2 == 0)) {
        EXPECT_TRUE(dispatcher_.tensor_ready(unready.back()));
        unready.pop_back();
      } else {
        const auto which = random_() % in_flight.size();
        EXPECT_TRUE(dispatcher_.finished(in_flight[which]).ok());
        in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(which));
      }
      for (const int position : drain(dispatcher_)) {
        started.push_back(position);
        in_flight.push_back(position);
        expect_credit_held(in_flight);
      }
    }
    EXPECT_EQ(dispatcher_.credit().in_flight_bytes(), 0);
    EXPECT_TRUE(dispatcher_.step_done().ok());
    return started;
  }

 private:
  void expect_credit_held(const std::vector<int>& in_flight) const {
    if (dispatcher_.credit().in_flight_bytes() > dispatcher_.credit().limit_bytes()) {
      EXPECT_EQ(in_flight.size(), 1U) << "only a partition that is alone may exceed the credit";
    }
  }

  std::mt19937_64 random_;
  Dispatcher dispatcher_;
};

TEST(Dispatcher, StartsTheSameOrderOnAllRanksWhateverTheirReadiness) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<PlannedTensor> tensors(1 + random() % 30);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].name = std::to_string(i);
      tensors[i].numel = static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 100 : 4000));
    }
    const auto plan = make_plan(std::move(tensors));
    const auto credit = static_cast<std::int64_t>(random() % 16000);
    std::vector<int> every;
    for (const Partition& partition : plan->partitions()) {
      every.push_back(partition.position);
    }
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      SimulatedRank simulated(plan, credit, seed * 4 + rank);
      EXPECT_EQ(simulated.run_step(), every);
      EXPECT_EQ(simulated.run_step(), every);
    }
  }
}

}  // namespace
}  // namespace sirtaki::scheduler
