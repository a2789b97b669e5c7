// The scenarios with real threads and sockets over a tree of relays: seven ranks, two children each, so two levels of
// relays below the coordinator. Ranks must not see a difference from a job without relays.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/scenarios/scenarios.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {
namespace {

constexpr int kRanks = 7;
// A relay whose rank leaves early serves the ranks below it until the grace ends.
constexpr const char* kTree =
    "control.fanout = 2\ncontrol.shutdown_grace = \"700ms\"\nschedule.fusion_bytes = \"4KiB\"\n"
    "schedule.partition_bytes = \"8KiB\"\nschedule.credit_bytes = \"64KiB\"\n";

void expect_well(const ScenarioFn& scenario, std::uint64_t seed = 1, int epochs = 1) {
  world::ThreadOptions options;
  options.seed = seed;
  options.size = kRanks;
  options.options_toml = kTree;
  options.epochs = epochs;
  EXPECT_EQ(world::run_threads(options, scenario), "");
}

TEST(ThreadTree, OperationsByName) {
  expect_well(named_operations(1, 5));
}
TEST(ThreadTree, ChangingShapes) {
  expect_well(changing_shapes(2, 10));
}
TEST(ThreadTree, StreamStepsWithUnusedTensors) {
  expect_well(stream_unused(4, 6), 4);
}
TEST(ThreadTree, StreamDeviations) {
  expect_well(stream_deviations(5, 6), 5);
}
TEST(ThreadTree, Everything) {
  expect_well(everything(6, 4), 6);
}
TEST(ThreadTree, UnevenEpochs) {
  expect_well(uneven_epochs(9, 3), 9);
}
TEST(ThreadTree, Mismatch) {
  expect_well(mismatch_and_recover(8, 2));
}
TEST(ThreadTree, StuckWithinTwoSeconds) {
  expect_well(stuck_and_recover());
}
TEST(ThreadTree, InitialisedAgainAndAgain) {
  expect_well(changing_shapes(7, 2), 7, 10);
}

// Ranks 0, 2, 4 and 6 carry relays of the lower level, 1 and 5 those of the upper one; 3 carries none.
class ThreadTreeGone : public testing::TestWithParam<Rank> {};
TEST_P(ThreadTreeGone, ARankDies) {
  expect_well(dying_rank(2, GetParam()));
}
TEST_P(ThreadTreeGone, ARankLeavesEarly) {
  expect_well(leaving_rank(2, GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadTreeGone, testing::Values(0, 1, 2, 3, 6));

}  // namespace
}  // namespace sirtaki::scenarios
