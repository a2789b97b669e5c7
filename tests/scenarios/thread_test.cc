// The scenarios with real threads, sockets and time. Few seeds: the simulator runs many.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/scenarios/scenarios.h"
#include "tests/world/seeds.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {
namespace {

// Small limits, so that small tensors exercise fusion, cutting, credit and every kind of transfer.
constexpr const char* kSmall =
    "schedule.fusion_bytes = \"4KiB\"\nschedule.partition_bytes = \"8KiB\"\nschedule.credit_bytes = \"64KiB\"\n"
    "net.eager_bytes = \"2KiB\"\nnet.exchange_bytes = \"1KiB\"\nnet.fragment_bytes = \"4KiB\"\n";

class Threads : public testing::TestWithParam<int> {
 protected:
  void expect_well(const ScenarioFn& scenario, std::uint64_t seed = 1, int epochs = 1) const {
    world::ThreadOptions options;
    options.seed = seed;
    options.size = GetParam();
    options.options_toml = kSmall;
    options.epochs = epochs;
    EXPECT_EQ(world::run_threads(options, scenario), "");
  }
};

TEST_P(Threads, OperationsByName) {
  expect_well(named_operations(1, 5));
}
TEST_P(Threads, ProcessSets) {
  expect_well(process_sets(13, 5), 13);
}
TEST_P(Threads, AdasumAndADeath) {
  if (GetParam() > 1) {
    expect_well(adasum_and_death(17, 5), 17);
  }
}
TEST_P(Threads, StreamOfAProcessSet) {
  expect_well(stream_of_a_set(15, 20), 15);
}
TEST_P(Threads, MismatchInAProcessSet) {
  if (GetParam() > 2) {
    expect_well(set_mismatch());
  }
}
TEST_P(Threads, ChangingShapes) {
  expect_well(changing_shapes(2, 20));
}
TEST_P(Threads, StreamSteps) {
  expect_well(stream_steps(3, 8), 3);
}
TEST_P(Threads, StreamUnused) {
  expect_well(stream_unused(4, 6), 4);
}
TEST_P(Threads, StreamClosedAtOnce) {
  expect_well(stream_closed_at_once(10, 2), 10, 5);
}
TEST_P(Threads, StreamAskedInAVoidStep) {
  if (GetParam() > 1) {
    expect_well(stream_asked_in_a_void_step(11, 5), 11);
  }
}
TEST_P(Threads, BroadcastAhead) {
  expect_well(broadcast_ahead(12, 6), 12);
}
TEST_P(Threads, StreamDeviations) {
  expect_well(stream_deviations(5, 10), 5);
}
TEST_P(Threads, StreamForward) {
  expect_well(stream_forward(6, 10), 6);
}
TEST_P(Threads, StreamReplanned) {
  expect_well(stream_replanned(7, 24, {}), 7);
  expect_well(stream_replanned(8, 8, {4, 11}), 8);
}
TEST_P(Threads, StreamDying) {
  if (GetParam() > 1) {
    expect_well(stream_dying(2));
  }
}
TEST_P(Threads, Everything) {
  expect_well(everything(6, 6), 6);
}
TEST_P(Threads, UnevenEpochs) {
  expect_well(uneven_epochs(9, 4), 9);
}
TEST_P(Threads, InitialisedAgainAndAgain) {
  expect_well(changing_shapes(7, 2), 7, 20);
}

TEST_P(Threads, Mismatch) {
  if (GetParam() > 1) {
    expect_well(mismatch_and_recover(8, 2));
  }
}

TEST_P(Threads, StuckWithinTwoSeconds) {
  if (GetParam() > 1) {
    expect_well(stuck_and_recover());
  }
}

TEST_P(Threads, DyingRank) {
  if (GetParam() > 1) {
    expect_well(dying_rank(3));
  }
}

TEST_P(Threads, NamesWhileJoined) {
  if (GetParam() > 1) {
    expect_well(names_while_joined(10));
  }
}

TEST_P(Threads, GoneWhileJoined) {
  if (GetParam() > 1) {
    expect_well(gone_while_joined(2, true));
    expect_well(gone_while_joined(2, false));
  }
}

TEST_P(Threads, LeavingRank) {
  if (GetParam() > 1) {
    expect_well(leaving_rank(3));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads, testing::ValuesIn(world::thread_ranks()));

}  // namespace
}  // namespace sirtaki::scenarios
