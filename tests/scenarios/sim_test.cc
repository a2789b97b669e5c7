// The scenarios in virtual time: many seeds; every failure prints the seed that replays it.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/sim_expect.h"
#include "tests/scenarios/support.h"
#include "tests/world/seeds.h"
#include "tests/world/sim_world.h"

namespace sirtaki::scenarios {
namespace {

world::SimOptions options_for(std::uint64_t seed) {
  return small_limits(seed, 1 + static_cast<int>(seed % 5));
}

TEST(Sim, OperationsByNameInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    expect_well(options_for(seed), named_operations(seed, 6));
  }
}

TEST(Sim, ProcessSetsWorkBesideEachOtherAndAll) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 5);
    expect_well(options, process_sets(seed, 6));
    options.engine.layout.partition_bytes = 4 + static_cast<std::int64_t>(seed % 4) * 8;
    expect_well(options, process_sets(seed, 6));
  }
}

TEST(Sim, StreamsOfProcessSetsWorkBesideThoseOfAll) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 5);
    expect_well(options, stream_of_a_set(seed, 24));
  }
}

TEST(Sim, AdasumsByNameAndADeathInTheMiddle) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 5);
    expect_well(options, adasum_and_death(seed, 6));
  }
}

TEST(Sim, AMismatchInAProcessSetIsItsOwn) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(40); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 3 + static_cast<int>(seed % 3);
    Duration took{};
    expect_well(options, set_mismatch(), &took);
    EXPECT_LT(took, std::chrono::seconds(2)) << "seed " << seed;
  }
}

// Stands for ranks that have not decided about a transport, and never will.
class Undecided final : public engine::OpTransport {
 public:
  void choose(engine::OpSpec& /*spec*/, Chosen then) override { then_ = std::move(then); }
  void choose_host(engine::OpSpec& /*spec*/, Chosen then) override { then(nullptr); }
  void give_up(const Status& cause) override {
    if (then_) {
      std::exchange(then_, {})(cause);
    }
  }

 private:
  Chosen then_;
};

// All ranks wait for the choice of the transport of an operation, until that of rank 1 fails.
Scenario fail_a_choice(RankApi& api) {
  Owned tensor = filled(api.rank(), 1, 10);
  engine::OpSpec spec = allreduce("sum", tensor);
  const auto transport = std::make_shared<Undecided>();
  spec.transport = transport;
  const std::uint64_t request = api.submit(std::move(spec));
  engine::OpSpec barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.name = "all have begun";
  require_ok(co_await api.run(std::move(barrier)), "a barrier");
  if (api.rank() == 1) {
    transport->give_up({Code::kUnavailable, "no transport", {1, ""}});
  }
  const Status status = co_await api.wait(request);
  require(status.code() == Code::kUnavailable && status.blame().rank == 1, status.to_string());
}

TEST(Sim, ACancelledOperationDoesNotWaitForTheChoiceOfItsTransport) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(20); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 3;
    world::SimWorld world(options);
    EXPECT_EQ(world.run(fail_a_choice), "") << "seed " << seed;
  }
}

// Several pieces per operation: results, mismatches, deaths and departures in the middle of one.
TEST(Sim, OperationsByNameInPieces) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.engine.layout.partition_bytes = 4 + static_cast<std::int64_t>(seed % 4) * 8;
    expect_well(options, named_operations(seed, 6));
    options.size = 2 + static_cast<int>(seed % 3);
    expect_well(options, mismatch_and_recover(seed, static_cast<int>(seed % 4)));
    expect_well(options, dying_rank(static_cast<int>(seed % 5)));
    expect_well(options, leaving_rank(static_cast<int>(seed % 5)));
  }
}

TEST(Sim, PiecesOfABroadcastStayInOrderHoweverFarItsRootIsAhead) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(40); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    options.engine.layout.partition_bytes = 4 + static_cast<std::int64_t>(seed % 3) * 4;
    expect_well(options, broadcast_ahead(seed, 8));
  }
}

TEST(Sim, ChangingShapesAreAgreedAgain) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    expect_well(options_for(seed), changing_shapes(seed, 20));
  }
}

TEST(Sim, MismatchNamesTensorRanksAndValuesAndTheNameWorksAgain) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 3);
    Duration took{};
    expect_well(options, mismatch_and_recover(seed, static_cast<int>(seed % 4)), &took);
    EXPECT_LT(took, std::chrono::seconds(2)) << "seed " << seed;
  }
}

TEST(Sim, ProvablyStuckIsAnErrorWithinTwoSeconds) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(30); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 3);
    Duration took{};
    expect_well(options, stuck_and_recover(), &took);
    EXPECT_LT(took, std::chrono::seconds(2)) << "seed " << seed;
  }
}

TEST(Sim, LateRankIsWaitedForAndNamed) {
  world::SimOptions options = options_for(3);
  options.size = 4;
  std::vector<std::string> warnings;
  expect_well(options, late_rank(std::chrono::minutes(10)), nullptr, &warnings);
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings.front().find("rank 3"), std::string::npos) << warnings.front();
  EXPECT_NE(warnings.front().find("after validation"), std::string::npos) << warnings.front();
}

TEST(Sim, RankThatNeverComesIsGivenUpAtTheLimit) {
  world::SimOptions options = options_for(3);
  options.size = 3;
  world::SimWorld world(options);
  const std::string outcome = world.run(late_rank(std::chrono::hours(1)));
  EXPECT_NE(outcome.find("timeout"), std::string::npos) << outcome;
  EXPECT_NE(outcome.find("rank 2"), std::string::npos) << outcome;
}

TEST(Sim, DeathIsReportedToAllRanksWithTheRank) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    Duration took{};
    expect_well(options, dying_rank(static_cast<int>(seed % 5)), &took);
    EXPECT_LT(took, std::chrono::seconds(1)) << "seed " << seed;
  }
}

TEST(Sim, LeavingEarlyIsReportedToTheOthers) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    expect_well(options, leaving_rank(static_cast<int>(seed % 5)));
  }
}

TEST(Sim, StreamStepsInAnyOrderOfReadiness) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(150); ++seed) {
    expect_well(options_for(seed), stream_steps(seed, 5));
  }
}

TEST(Sim, UnusedTensorsAreSettledByAgreement) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(150); ++seed) {
    expect_well(options_for(seed), stream_unused(seed, 6));
  }
}

TEST(Sim, ARankWithoutGradientsIsSettledWithRanksThatAreAhead) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(150); ++seed) {
    expect_well(options_for(seed), stream_idle_rank(seed, 4));
  }
}

TEST(Sim, FlagsOfTheLastStepAreAnsweredByRanksThatHaveClosedTheStream) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(300); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    expect_well(options, stream_closed_at_once(seed, static_cast<int>(seed % 3)));
  }
}

TEST(Sim, FlagsAskedForInAVoidStepAreNotTakenForThoseOfTheNextAttempt) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(300); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    expect_well(options, stream_asked_in_a_void_step(seed, 6));
  }
}

TEST(Sim, AStreamWorksHoweverManyStepsWereGivenUp) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(6); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 3);
    expect_well(options, stream_given_up_often(seed, 600));
  }
}

TEST(Sim, DeviationsEndTheStepEverywhereAndTheStreamGoesOn) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(150); ++seed) {
    expect_well(options_for(seed), stream_deviations(seed, 12));
  }
}

TEST(Sim, TensorsAreWaitedForInTheOrderOfAForwardPass) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(300); ++seed) {
    expect_well(options_for(seed), stream_forward(seed, 8));
  }
}

TEST(Sim, BetterPlansAreAdoptedByAllRanksAtTheSameStep) {
  std::uint64_t adopted = 0;
  for (std::uint64_t seed = 1; seed <= world::last_seed(40); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 3);
    world::SimWorld world(options);
    ASSERT_EQ(world.run(stream_replanned(seed, 20, {})), "");
    EXPECT_EQ(world.check_quiet(), "") << "seed " << seed;
    const std::uint64_t here = world.counter("streams.plans_adopted");
    EXPECT_EQ(here % static_cast<std::uint64_t>(options.size), 0U) << "seed " << seed;
    EXPECT_EQ(world.counter("streams.plans_rejected"), 0U) << "seed " << seed;
    adopted += here > 0 ? 1 : 0;
  }
  EXPECT_GT(adopted, world::last_seed(40) / 2);
  std::printf("another plan was adopted with %d seeds\n", static_cast<int>(adopted));
}

TEST(Sim, StepGivenUpAnywhereLeavesAllRanksWithOnePlan) {
  for (int step = 1; step < 8; ++step) {
    for (int point = 0; point < kReplannedPoints; ++point) {
      const auto seed = static_cast<std::uint64_t>(step * kReplannedPoints + point);
      if (!world::has_case(seed)) {
        continue;
      }
      world::SimOptions options = options_for(seed);
      options.size = 2 + static_cast<int>(seed % 3);
      expect_well(options, stream_replanned(seed, 9, {step, point}));
    }
  }
}

TEST(Sim, DifferentPlansAreReportedOnceAndNotUsed) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(10); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 3;
    options.per_rank = [](Rank rank, engine::EngineOptions& engine) {
      engine.credit_bytes = rank == 1 ? 10000 : engine.credit_bytes;
    };
    world::SimWorld world(options);
    ASSERT_EQ(world.run(stream_replanned(seed, 40, {})), "");
    EXPECT_EQ(world.counter("streams.plans_adopted"), 0U) << "seed " << seed;
    EXPECT_EQ(world.counter("streams.plans_rejected"), 3U) << "seed " << seed;
    EXPECT_EQ(world.rank_log().size(), 3U) << "seed " << seed;
    for (const std::string& line : world.rank_log()) {
      EXPECT_NE(line.find("different plans"), std::string::npos) << line;
    }
  }
}

// The plans are rejected in step 4; ranks have seen different parts of that when a step is given up.
TEST(Sim, DifferentPlansAreReportedOnceWhicheverStepIsGivenUp) {
  for (int step = 3; step < 6; ++step) {
    for (int point = 0; point < kReplannedPoints; ++point) {
      const auto seed = static_cast<std::uint64_t>(step * kReplannedPoints + point);
      if (!world::has_case(seed)) {
        continue;
      }
      world::SimOptions options = options_for(seed);
      options.size = 3;
      options.per_rank = [](Rank rank, engine::EngineOptions& engine) {
        engine.credit_bytes = rank == 1 ? 10000 : engine.credit_bytes;
      };
      world::SimWorld world(options);
      ASSERT_EQ(world.run(stream_replanned(seed, 8, {step, point})), "");
      EXPECT_EQ(world.counter("streams.plans_adopted"), 0U) << "seed " << seed;
      EXPECT_LE(world.counter("streams.plans_rejected"), 3U) << "seed " << seed;
      EXPECT_EQ(world.rank_log().size(), 3U) << "seed " << seed;
    }
  }
}

TEST(Sim, FrozenStreamsExchangeNoProfiles) {
  world::SimOptions options = options_for(2);
  options.size = 3;
  options.engine.replan = false;
  world::SimWorld world(options);
  ASSERT_EQ(world.run(stream_replanned(2, 20, {})), "");
  EXPECT_EQ(world.counter("streams.profiles"), 0U);
}

TEST(Sim, ThreadThatWaitsForATensorIsWokenByAbortAndClose) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(20); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2;
    expect_well(options, stream_woken(false));
    world::SimWorld closing(options);
    EXPECT_EQ(closing.run(stream_woken(true)), "");
  }
}

TEST(Sim, ThreadThatWaitsForATensorLearnsOfALostRank) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    expect_well(options, stream_dying(static_cast<int>(seed % 3)));
  }
}

TEST(Sim, UnevenEpochsEndOnAllRanks) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(400); ++seed) {
    expect_well(options_for(seed), uneven_epochs(seed, 3));
  }
}

TEST(Sim, OperationsByNameGoOnWithoutThoseThatHaveJoined) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(400); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    Duration took{};
    expect_well(options, names_while_joined(seed), &took);
    EXPECT_LT(took, std::chrono::seconds(3)) << "seed " << seed;
  }
}

TEST(Sim, NamesThatNobodyUsesAreForgottenByAllRanksTogether) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 1 + static_cast<int>(seed % 5);
    options.control.coordinator.names = 1 + seed % 30;
    options.control.fanout = seed % 3 == 0 ? 2 : 0;
    expect_well(options, many_names(seed, 60));
  }
}

// Names are forgotten while ranks join.
TEST(Sim, NamesAreForgottenWhileRanksJoin) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    options.control.coordinator.names = 1 + seed % 4;
    expect_well(options, names_while_joined(seed));
    expect_well(options, left_in_flight_before_joining(seed));
  }
}

TEST(Sim, AnOperationInFlightCompletesWhenTheOthersJoin) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(100); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    expect_well(options, left_in_flight_before_joining(seed));
  }
}

TEST(Sim, AStepGivenUpBeforeJoiningIsOverAfterwards) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(200); ++seed) {
    expect_well(options_for(seed), given_up_before_joining(seed));
  }
}

TEST(Sim, JoinFailsWhenARankIsGone) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(60); ++seed) {
    world::SimOptions options = options_for(seed);
    options.size = 2 + static_cast<int>(seed % 4);
    expect_well(options, gone_while_joined(static_cast<int>(seed % 5), seed % 2 == 0));
  }
}

TEST(Sim, EverythingAtOnce) {
  for (std::uint64_t seed = 1; seed <= world::last_seed(1000); ++seed) {
    expect_well(options_for(seed), everything(seed, 3));
  }
  std::printf("seeds 1 to %d\n", static_cast<int>(world::last_seed(1000)));
}

TEST(Sim, SteadyStateSendsNoControlMessage) {
  world::SimOptions options = options_for(4);
  options.size = 4;
  world::SimWorld few(options);
  ASSERT_EQ(few.run(stream_steps(1, 2)), "");
  world::SimWorld many(options);
  ASSERT_EQ(many.run(stream_steps(1, 50)), "");
  EXPECT_EQ(few.control_messages(), many.control_messages());
  EXPECT_EQ(many.counter("streams.profiles"), 4U * 4U);  // after steps 3, 6, 16 and 32: the plan did not change
}

// A step that takes seconds is a long wait, but it progresses, so no rank reports it.
TEST(Sim, SlowStepsSendNoControlMessageEither) {
  world::SimOptions options = options_for(4);
  options.size = 4;
  options.bytes_per_second = 50e3;
  world::SimWorld few(options);
  ASSERT_EQ(few.run(stream_steps(1, 2)), "");
  world::SimWorld many(options);
  const TimePoint begin = many.now();
  ASSERT_EQ(many.run(stream_steps(1, 10)), "");
  EXPECT_GT(many.now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(few.control_messages(), many.control_messages());
}

TEST(Sim, SameSeedIsTheSameRun) {
  Duration first{};
  Duration second{};
  expect_well(options_for(9), everything(9, 4), &first);
  expect_well(options_for(9), everything(9, 4), &second);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace sirtaki::scenarios
