// Compressed streams in virtual time.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <numeric>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/sim_expect.h"
#include "tests/world/seeds.h"
#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {
namespace {

// Every codec runs equally many seeds with every number of ranks and, as sums have even and averages odd seeds, with
// both reduce operations: these numbers have no factor in common.
constexpr std::uint64_t kMostRanks = 5;
constexpr std::uint64_t kAllPairs = kMostRanks * std::size(kCodecs);
static_assert(std::gcd(kMostRanks, 2 * std::size(kCodecs)) == 1);

world::SimOptions options_for(std::uint64_t seed) {
  return small_limits(seed, 1 + static_cast<int>(seed % kMostRanks));
}

// Pauses, stalls, steps given up at any moment: no deadlock, all credit returned, and all ranks have the same results.
TEST(Compressed, RanksHaveTheSameResultsWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(kAllPairs); ++seed) {
    CompressedRun run = run_of(seed, 12);
    run.wild = true;
    expect_well(options_for(seed), compressed_steps(run));
  }
}

TEST(Compressed, AThousandStepsLeaveAllRanksWithTheSameBits) {
  for (std::uint64_t seed = 1; seed <= std::size(kCodecs); ++seed) {
    CompressedRun run = run_of(seed, 1000);
    run.tiny = true;
    world::SimOptions options = options_for(seed);
    options.size = 3;
    expect_well(options, compressed_steps(run));
  }
}

TEST(Compressed, ResultsAndResidualsAddUpToTheInputs) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(kAllPairs); ++seed) {
    expect_well(options_for(seed), compressed_balance(run_of(seed, 6)));
  }
}

TEST(Compressed, NonFiniteGradientsAreNanOnAllRanksOrEndTheStepOnAll) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(kAllPairs); ++seed) {
    for (const bool finite_only : {false, true}) {
      CompressedRun run = run_of(seed, 6);
      run.finite_only = finite_only;
      world::SimOptions options = options_for(seed);
      options.engine.finite_only = finite_only;
      expect_well(options, compressed_poison(run));
    }
  }
}

// Residuals of factors are rounded, so a balance cannot be checked.
TEST(Compressed, RanksThatReduceFactorsHaveTheSameResultsWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(20); ++seed) {
    CompressedRun run = run_of(seed, 12);
    run.codec = "powersgd:min=0,ndim=0";
    expect_well(options_for(seed), compressed_poison(run));
    run.wild = true;
    expect_well(options_for(seed), compressed_steps(run));
  }
}

// Small integers pass int8 unharmed, so scenarios of dense streams know every sum of compressed ones, too.
TEST(Compressed, ScenariosOfDenseStreams) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(10); ++seed) {
    for (const char* const codec : {"int8:min=0,ndim=0,wire=scatter", "int8:min=0,ndim=0,wire=gather"}) {
      world::SimOptions options = options_for(seed);
      options.engine.codec = codec;
      expect_well(options, stream_unused(seed, 6));
      expect_well(options, stream_forward(seed, 8));
      expect_well(options, stream_replanned(seed, 20, {}));
      expect_well(options, uneven_epochs(seed, 3));
      expect_well(options, everything(seed, 6));
      options.size = 2 + static_cast<int>(seed % 3);
      expect_well(options, stream_dying(static_cast<int>(seed % 3)));
      expect_well(options, stream_closed_at_once(seed, static_cast<int>(seed % 3)));
      expect_well(options, stream_asked_in_a_void_step(seed, 6));
    }
  }
}

// Plans that change codecs in the middle of a run: results stay the same on all ranks, and no gradient is lost.
TEST(Compressed, PoliciesChangeHowTensorsTravel) {
  const char* const policies[] = {
      "auto:min=0,ndim=0",   "importance:min=0,ndim=0", "importance:link=aimd,start=20%,min=0,ndim=0",
      "twobit:min=0,ndim=0", "algc:min=0,ndim=0",       "importance:split=loss,min=0,ndim=0"};
  for (std::uint64_t seed = 1; seed <= world::last_seed(9); ++seed) {
    SCOPED_TRACE(seed);
    CompressedRun run = run_of(seed, 40);
    run.codec = policies[seed % std::size(policies)];
    world::SimOptions options = small_limits(seed, 2 + static_cast<int>(seed % 3));
    options.bytes_per_second = 5e5;
    world::SimWorld world(options);
    ASSERT_EQ(world.run(compressed_steps(run)), "");
    EXPECT_EQ(world.check_quiet(), "");
    // A policy that measures the link may keep its first decisions, which auto makes by the measured link.
    const bool always = run.codec.starts_with("importance");
    EXPECT_TRUE(!always || world.counter("streams.plans_adopted") > 0);
    EXPECT_LT(world.counter("streams.wire_bytes"), world.counter("streams.raw_bytes"));
    run.wild = true;
    expect_well(options, compressed_steps(run));
    run.wild = false;
    run.steps = 30;
    expect_well(options, compressed_balance(run));
  }
}

}  // namespace
}  // namespace sirtaki::scenarios
