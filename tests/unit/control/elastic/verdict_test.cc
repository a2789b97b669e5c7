#include "runtime/control/elastic/verdict.h"

#include <gtest/gtest.h>

namespace sirtaki::control {
namespace {

constexpr StepState kStates[] = {StepState::kIdle, StepState::kWorking, StepState::kComplete, StepState::kPassed};
constexpr StreamId kOptimizer(3);

using Reports = std::vector<std::optional<StreamReports>>;

StreamReports at(std::uint64_t step, StepState state, std::uint32_t attempt = 0) {
  return {{kOptimizer, attempt, step, state}};
}

std::uint64_t committed(const Reports& reports) {
  const EpochVerdict result = verdict(reports);
  EXPECT_EQ(result.streams.size(), 1U);
  return result.streams.empty() ? 0 : result.streams.front().committed;
}

TEST(Verdict, AStepIsVoidIfNoRankHasPassedIt) {
  const Reports reports = {at(7, StepState::kComplete), at(7, StepState::kWorking), at(7, StepState::kIdle)};
  EXPECT_EQ(committed(reports), 7U);
  EXPECT_TRUE(verdict(reports).broken.empty());
}

TEST(Verdict, AStepCountsOnAllIfOneRankHasPassedIt) {
  const Reports reports = {at(7, StepState::kComplete), at(7, StepState::kPassed), at(7, StepState::kComplete)};
  EXPECT_EQ(committed(reports), 8U);
  EXPECT_TRUE(verdict(reports).broken.empty());
}

TEST(Verdict, TheNextStepProvesTheOneBefore) {
  for (const StepState state : {StepState::kIdle, StepState::kWorking, StepState::kComplete}) {
    const Reports reports = {at(7, StepState::kComplete), at(8, state)};
    EXPECT_EQ(committed(reports), 8U);
    EXPECT_TRUE(verdict(reports).broken.empty());
  }
}

TEST(Verdict, ALostRankDoesNotCount) {
  EXPECT_EQ(committed({at(7, StepState::kComplete), std::nullopt}), 7U);
  EXPECT_TRUE(verdict(Reports{std::nullopt, std::nullopt}).streams.empty());
}

TEST(Verdict, ARankWithoutTheResultsOfACommittedStepIsNamed) {
  EXPECT_EQ(verdict(Reports{at(7, StepState::kPassed), at(7, StepState::kWorking)}).broken, std::vector<Rank>{1});
  EXPECT_EQ(verdict(Reports{at(7, StepState::kIdle), at(7, StepState::kPassed)}).broken, std::vector<Rank>{0});
  EXPECT_EQ(verdict(Reports{at(9, StepState::kWorking), at(7, StepState::kPassed)}).broken, std::vector<Rank>{1});
}

TEST(Verdict, AnAbortedAttemptIsVoidUnlessTheNewOneHasGoneOn) {
  EXPECT_EQ(committed({at(7, StepState::kComplete, 0), at(7, StepState::kWorking, 1)}), 7U);
  const Reports impossible = {at(7, StepState::kComplete, 0), at(7, StepState::kPassed, 1)};
  EXPECT_EQ(verdict(impossible).broken, std::vector<Rank>{0});
}

TEST(Verdict, StreamsAreIndependent) {
  const StreamReports first = {{StreamId(1), 0, 4, StepState::kPassed}, {StreamId(2), 0, 9, StepState::kWorking}};
  const StreamReports second = {{StreamId(2), 0, 9, StepState::kComplete}, {StreamId(1), 0, 4, StepState::kComplete}};
  const std::vector<StreamVerdict> expected = {{StreamId(1), 5}, {StreamId(2), 9}};
  EXPECT_EQ(verdict(Reports{first, second}).streams, expected);
}

TEST(Verdict, AStreamOfOtherRanksBindsNobody) {
  const Reports reports = {at(7, StepState::kPassed), StreamReports()};
  EXPECT_EQ(committed(reports), 8U);
  EXPECT_TRUE(verdict(reports).broken.empty());
}

// A barrier lets no rank pass before all are complete, and no rank begins a step before it has passed the one before.
// Tries every set of positions that this allows with every subset of survivors: no survivor is broken, and each rank
// that has passed a step survives with that step.
TEST(Verdict, EveryPositionThatTheGateAllowsHasAnAtomicEnd) {
  for (int code = 0; code < 8 * 8 * 8; ++code) {
    const int position[] = {code % 8, code / 8 % 8, code / 64};  // step * 4 + state
    const auto [low, high] = std::minmax({position[0], position[1], position[2]});
    const bool allowed = high < 3 || low >= 2 + (high - 3) / 4 * 4;
    if (!allowed) {
      continue;
    }
    for (int alive = 1; alive < 8; ++alive) {
      Reports reports(3);
      std::uint64_t passed = 0;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        if ((alive >> rank & 1) != 0) {
          const auto step = static_cast<std::uint64_t>(position[rank] / 4);
          reports[rank] = at(step, kStates[position[rank] % 4]);
          passed = std::max(passed, step + (position[rank] % 4 == 3 ? 1 : 0));
        }
      }
      EXPECT_EQ(committed(reports), passed) << "positions " << code << ", alive " << alive;
      EXPECT_TRUE(verdict(reports).broken.empty()) << "positions " << code << ", alive " << alive;
    }
  }
}

}  // namespace
}  // namespace sirtaki::control
