// Compressed streams in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/sim_expect.h"
#include "tests/scenarios/support.h"
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

// Steps of a stream with one square matrix, which the last rank opens later than the others.
Scenario square(RankApi& api, std::string codec, std::int64_t side, Duration late) {
  if (api.rank() == api.size() - 1) {
    require_ok(co_await api.compute(late), "being late");
  }
  engine::StreamSpec spec;
  spec.name = "optimizer";
  spec.codec = std::move(codec);
  engine::StreamTensor matrix;
  matrix.name = "matrix";
  matrix.dims = {side, side};
  spec.tensors.push_back(std::move(matrix));
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (std::uint64_t step = 0; step < 4; ++step) {
    Owned gradient = filled(api.rank(), step, static_cast<std::size_t>(side * side));
    api.ready(*stream, 0, gradient.view(), false);
    api.finish(*stream);
    require_ok(co_await api.wait_stream(*stream), "a step");
  }
}

// A job with a stream of a policy on a link of 0.5 MB/s, without jitter.
struct PolicyRun {
  int size = 4;
  std::string codec = "auto";
  std::int64_t side = 128;
  bool replan = true;
  Duration late = {};
};

struct Told {
  std::vector<std::string> lines;     // on all ranks
  std::vector<std::string> warnings;  // on the coordinator
  bool compressed = false;

  // Returns the lines with a part.
  std::vector<std::string> with(const std::string& part) const {
    std::vector<std::string> found;
    std::ranges::copy_if(lines, std::back_inserter(found),
                         [&](const std::string& line) { return line.find(part) != std::string::npos; });
    return found;
  }
};

Told tell(const PolicyRun& run) {
  world::SimOptions options = small_limits(1, run.size);
  options.min_delay = options.max_delay;
  options.bytes_per_second = 5e5;
  options.log_level = LogLevel::kInfo;
  options.engine.replan = run.replan;
  world::SimWorld world(options);
  EXPECT_EQ(world.run([run](RankApi& api) { return square(api, run.codec, run.side, run.late); }), "");
  return {world.rank_log(), world.warnings(), world.counter("streams.wire_bytes") < world.counter("streams.raw_bytes")};
}

// Each is said by one rank of the job.
TEST(Compressed, AutoSaysOnceWhatLimitsIt) {
  struct Case {
    PolicyRun run;
    const char* level;
    const char* said;
    bool compressed;
  };
  const Case cases[] = {
      {{.size = 1},
       " info: ",
       "auto sends dense gradients, because one rank alone has no link; start more ranks to compress them",
       false},
      {{.side = 16},
       " info: ",
       "auto sends dense gradients, because no float32 tensor that auto decides has 16KiB and 2 dimensions; smaller "
       "values of the keys min and ndim allow more",
       false},
      {{.replan = false},
       " warn: ",
       "auto sends dense gradients, because schedule.replan is off and nothing is measured; turn it on, or name a "
       "codec, "
       "such as int8",
       false},
      {{.codec = "auto:optimizer=other"},
       " info: ",
       "auto goes no further than int8, because fewer bits are not known to cost this optimizer little loss; "
       "optimizer=adam or optimizer=sgd gives it the levels of these",
       true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.said);
    const Told told = tell(c.run);
    const auto lines = told.with("stream 'optimizer': auto ");
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_NE(lines[0].find(c.said), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find(c.level), std::string::npos) << lines[0];
    EXPECT_EQ(told.compressed, c.compressed);
  }
  const Told usual = tell({});
  EXPECT_TRUE(usual.with("stream 'optimizer': auto ").empty());
  EXPECT_TRUE(usual.compressed);
}

// The link is measured when all ranks are there, so a rank that is late takes nothing from its speed.
TEST(Compressed, ARankThatStartsLateDoesNotChangeTheFirstLevelOfAuto) {
  const auto first_levels = [](const Told& told) {
    std::vector<std::string> levels;
    for (const std::string& line : told.with(" at first")) {
      const std::size_t begin = line.find("auto: ");
      levels.push_back(line.substr(begin, line.find(" at first") - begin));
    }
    return levels;
  };
  const Told punctual = tell({});
  const Told late = tell({.late = std::chrono::seconds(100)});
  EXPECT_EQ(first_levels(punctual).size(), 1U) << "of four ranks";
  EXPECT_EQ(first_levels(late), first_levels(punctual));
  EXPECT_TRUE(late.compressed);
  EXPECT_TRUE(punctual.warnings.empty());
  ASSERT_EQ(late.warnings.size(), 1U) << "after a minute";
  EXPECT_NE(late.warnings[0].find("rank 3"), std::string::npos) << late.warnings[0];
  EXPECT_NE(late.warnings[0].find("optimizer"), std::string::npos) << late.warnings[0];
}

}  // namespace
}  // namespace sirtaki::scenarios
