// Compressed streams with threads.
#include <gtest/gtest.h>

#include <string>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/scenarios.h"
#include "tests/world/seeds.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {
namespace {

class CompressedThreads : public testing::TestWithParam<int> {
 protected:
  void expect_well(const ScenarioFn& scenario, std::uint64_t seed, const std::string& more = {}) const {
    world::ThreadOptions options;
    options.seed = seed;
    options.size = GetParam();
    options.options_toml =
        "schedule.fusion_bytes = \"4KiB\"\nschedule.partition_bytes = \"8KiB\"\nschedule.credit_bytes = \"64KiB\"\n"
        "net.eager_bytes = \"2KiB\"\nnet.exchange_bytes = \"1KiB\"\nnet.fragment_bytes = \"4KiB\"\n" +
        more;
    EXPECT_EQ(world::run_threads(options, scenario), "");
  }
};

TEST_P(CompressedThreads, RanksHaveTheSameResultsWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= std::size(kCodecs); ++seed) {
    CompressedRun run = run_of(seed, 8);
    run.wild = true;
    expect_well(compressed_steps(run), seed);
  }
}

TEST_P(CompressedThreads, ResultsAndResidualsAddUpToTheInputs) {
  expect_well(compressed_balance(run_of(1, 5)), 1);
}

TEST_P(CompressedThreads, NonFiniteGradientsAreNanOnAllRanksOrEndTheStepOnAll) {
  CompressedRun run = run_of(2, 6);
  expect_well(compressed_poison(run), 2);
  run.finite_only = true;
  expect_well(compressed_poison(run), 2, "compression.nonfinite = \"error\"\n");
}

TEST_P(CompressedThreads, RanksThatDieOrHaveNoMoreData) {
  const std::string codec = "compression.codec = \"int8:min=0,ndim=0,wire=scatter\"\n";
  expect_well(uneven_epochs(9, 3), 9, codec);
  if (GetParam() > 1) {
    expect_well(stream_dying(2), 3, codec);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CompressedThreads, testing::ValuesIn(world::thread_ranks()));

}  // namespace
}  // namespace sirtaki::scenarios
