// Guards of local updates: one rank goes wrong, the others go on.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/world/local_training.h"
#include "tests/world/sim_exchange.h"

namespace sirtaki::world {
namespace {

using local_updates::Action;
using local_updates::Alarm;
using local_updates::Guard;
using local_updates::LocalOptions;
using local_updates::LocalOutcome;
using local_updates::LocalUpdater;
using local_updates::Mode;

constexpr local_updates::OuterOptions kMomentum{.on = true, .lr = 0.7, .momentum = 0.5, .nesterov = true};

struct Drill {
  int size = 4;
  LocalOptions local = local_options("4:delay=1", 2);
  int steps = 80;
  bool tells_loss = true;
  // Before step k of a rank.
  std::function<void(Training&, const LocalUpdater&, Rank, int)> before = {};
};

struct Result4 {
  std::string error;
  std::vector<Alarm> alarms;  // alarms of the decisions, which are the same on all ranks
  std::vector<std::string> stats;
  std::vector<std::vector<std::vector<float>>> models;
  std::vector<std::uint64_t> anchors;
  std::vector<int> resets;
  bool mean_was_finite = true;
  bool kept_momentum = false;  // an outer momentum survived a return to the anchor or a repair

  int count(Guard guard, Action action, Rank rank) const {
    return static_cast<int>(std::ranges::count_if(alarms, [=](const Alarm& alarm) {
      return alarm.guard == guard && alarm.action == action && alarm.rank == rank;
    }));
  }
};

bool finite(const std::vector<std::vector<float>>& model) {
  return std::ranges::all_of(model, [](const std::vector<float>& tensor) {
    return std::ranges::all_of(tensor, [](float value) { return std::isfinite(value); });
  });
}

Result4 run(const Drill& drill) {
  Result4 result;
  const auto count = static_cast<std::size_t>(drill.size);
  result.stats.resize(count);
  result.models.resize(count);
  result.anchors.resize(count);
  result.resets.resize(count);
  SimExchanges net({.seed = 11, .size = drill.size});
  result.error = net.run([&](SimExchanges::RankExchange& exchange) {
    const auto me = static_cast<std::size_t>(exchange.rank());
    Training training({}, exchange.rank());
    const auto updater = updater_of(drill.local, training.model(drill.local.fragments), exchange);
    must(updater->start());
    const auto follow = [&](const LocalOutcome& outcome) {
      for (const auto& decision : outcome.decisions) {
        const bool replaced = std::ranges::any_of(decision.alarms, [](const Alarm& alarm) {
          return alarm.action == Action::kRollBack || alarm.action == Action::kRepair;
        });
        for (const local_updates::Anchor& anchor : updater->anchors()) {
          const bool kept = std::ranges::any_of(anchor.momentum(), [](float value) { return value != 0; });
          result.kept_momentum = result.kept_momentum || (replaced && kept);
        }
        if (me == 0) {
          result.alarms.insert(result.alarms.end(), decision.alarms.begin(), decision.alarms.end());
        }
      }
      if (outcome.reset_optimizer || outcome.equalize_optimizer) {
        ++result.resets[me];
        training.reset_optimizer();
      }
      for (const local_updates::Anchor& anchor : updater->anchors()) {
        for (const float value : anchor.values()) {
          result.mean_was_finite = result.mean_was_finite && std::isfinite(value);
        }
      }
    };
    for (int k = 1; k <= drill.steps; ++k) {
      exchange.compute(std::chrono::milliseconds(10));
      if (drill.before) {
        drill.before(training, *updater, exchange.rank(), k);
      }
      training.step(updater->interval().mode == Mode::kSync);
      const std::optional<double> loss = drill.tells_loss ? std::optional(training.loss()) : std::nullopt;
      follow(must(updater->step({.lr = 0.05, .loss = loss})));
    }
    follow(must(updater->drain()));
    result.models[me] = training.tensors;
    result.anchors[me] = updater->anchors_digest();
    result.stats[me] = updater->stats_json();
  });
  return result;
}

void expect_equal_end(const Result4& result) {
  for (std::size_t rank = 0; rank < result.models.size(); ++rank) {
    EXPECT_TRUE(finite(result.models[rank]));
    EXPECT_EQ(result.models[rank], result.models[0]);
    EXPECT_EQ(result.anchors[rank], result.anchors[0]);
  }
}

TEST(LocalGuards, ARankThatIsNotFiniteIsLeftOutAndComesBack) {
  for (const char* interval : {"4:delay=0", "4:delay=1", "8:delay=6"}) {
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Drill drill;
      drill.local = local_options(interval, 2);
      drill.before = [poison](Training& training, const LocalUpdater&, Rank rank, int k) {
        if (rank == 1 && k == 42) {
          training.tensors[1][3] = poison;
        }
      };
      const Result4 result = run(drill);
      ASSERT_EQ(result.error, "") << interval;
      EXPECT_TRUE(result.mean_was_finite);
      EXPECT_GE(result.count(Guard::kNonFinite, Action::kResetRank, 1), 1) << interval;
      EXPECT_EQ(result.count(Guard::kNonFinite, Action::kRollBack, -1), 0);
      EXPECT_EQ(result.count(Guard::kLoss, Action::kRollBack, -1), 0) << "its loss is its own";
      EXPECT_GE(result.resets[1], 1);
      EXPECT_EQ(result.resets[0], 0) << "the others go on";
      expect_equal_end(result);
    }
  }
}

TEST(LocalGuards, WhereMostAreNotFiniteAllGoBack) {
  Drill drill;
  drill.local.outer = kMomentum;
  drill.before = [](Training& training, const LocalUpdater&, Rank rank, int k) {
    if (rank != 1 && k == 42) {
      training.tensors[1][3] = std::numeric_limits<float>::quiet_NaN();
    }
  };
  const Result4 result = run(drill);
  ASSERT_EQ(result.error, "");
  EXPECT_TRUE(result.mean_was_finite);
  EXPECT_GE(result.count(Guard::kNonFinite, Action::kRollBack, -1), 1);
  EXPECT_FALSE(result.kept_momentum);
  expect_equal_end(result);
}

TEST(LocalGuards, ARankThatRunsAwayIsLeftOut) {
  Drill drill;
  drill.steps = 200;
  drill.before = [](Training& training, const LocalUpdater&, Rank rank, int k) {
    if (rank == 2) {
      training.rate = k >= 130 ? 20 * 0.05F : 0.05F;
    }
  };
  const Result4 result = run(drill);
  ASSERT_EQ(result.error, "");
  EXPECT_GE(result.count(Guard::kNorm, Action::kExclude, 2), 1);
  for (const Rank rank : {0, 1, 3}) {
    EXPECT_EQ(result.count(Guard::kNorm, Action::kExclude, rank), 0);
    EXPECT_EQ(result.stats[static_cast<std::size_t>(rank)].find("\"merges_excluded\":0,") == std::string::npos, false);
  }
  EXPECT_NE(result.stats[2].find("\"merges_excluded\":"), std::string::npos);
  expect_equal_end(result);
}

// One of four ranks goes ten times as far as the others, in the first merge already.
TEST(LocalGuards, ALongDifferenceIsScaledToTwiceTheMedian) {
  for (const char* codec : {"", "int8"}) {
    for (const char* interval : {"2:delay=0", "2:delay=1", "2:delay=0,guard=off"}) {
      const bool guarded = std::string(interval).find("off") == std::string::npos;
      std::vector<float> anchors(4);
      std::vector<std::string> stats(4);
      SimExchanges net({.seed = 3, .size = 4});
      const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
        const auto me = static_cast<std::size_t>(exchange.rank());
        TrainingOptions options;
        options.sizes = {2};
        Training training(options, exchange.rank());
        training.tensors[0] = {8, 8};
        LocalOptions local = local_options(interval);
        local.codec = codec;
        const auto updater = updater_of(local, training.model(1), exchange);
        must(updater->start());
        for (int k = 0; k < 3; ++k) {
          training.tensors[0][1] += k > 1 ? 0 : me == 2 ? 10.0F : 1.0F;
          must(updater->step({}));
        }
        anchors[me] = updater->anchors()[0].values()[1];
        stats[me] = updater->stats_json();
      });
      ASSERT_EQ(error, "");
      const float expected = 8 + (3 * 2.0F + (guarded ? 4.0F : 20.0F)) / 4;
      for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_NEAR(anchors[rank], expected, 1e-5) << interval << " " << codec;
        const std::string clipped = "\"merges_clipped\":" + std::to_string(guarded && rank == 2 ? 1 : 0) + ",";
        EXPECT_NE(stats[rank].find(clipped), std::string::npos) << stats[rank];
      }
    }
  }
}

TEST(LocalGuards, AnchorsThatDifferAreRepairedByTheMajority) {
  for (const int size : {3, 2}) {
    // Differences from the anchor travel, so that the fault does not go away by itself; momentum keeps it.
    for (const local_updates::OuterOptions& outer : {local_updates::OuterOptions{.on = true, .lr = 0.9}, kMomentum}) {
      Drill drill;
      drill.size = size;
      drill.local = local_options("4:delay=0", 2);
      drill.before = [](Training&, const LocalUpdater& updater, Rank rank, int k) {
        if (rank == 1 && k == 41) {
          // A bit of memory turns over.
          const std::span<const float> values = updater.anchors()[1].values();
          const_cast<float&>(values[2]) += 0.25F;  // NOLINT(cppcoreguidelines-pro-type-const-cast)
        }
      };
      drill.local.outer = outer;
      const Result4 result = run(drill);
      if (size == 2) {
        EXPECT_NE(result.error.find("no majority"), std::string::npos) << result.error;
        continue;
      }
      ASSERT_EQ(result.error, "");
      EXPECT_EQ(result.count(Guard::kDigest, Action::kRepair, 1), 1);
      EXPECT_FALSE(result.kept_momentum);
      expect_equal_end(result);
    }
  }
}

TEST(LocalGuards, ModelsThatDifferAreSeenBeforeLocalStepsBegin) {
  for (const int size : {3, 2}) {
    Drill drill;
    drill.size = size;
    drill.local = local_options("4:delay=1,warmup=20", 2);
    drill.before = [](Training& training, const LocalUpdater&, Rank rank, int k) {
      if (rank == 1 && k == 10) {
        training.tensors[0][0] += 1.0F;
      }
    };
    const Result4 result = run(drill);
    if (size == 2) {
      EXPECT_NE(result.error.find("no majority"), std::string::npos) << result.error;
      continue;
    }
    ASSERT_EQ(result.error, "");
    EXPECT_NE(result.stats[0].find("\"repairs\":1,"), std::string::npos) << result.stats[0];
    expect_equal_end(result);
  }
}

TEST(LocalGuards, PullsBackTowardsTheAnchor) {
  Drill drill;
  drill.size = 2;
  drill.steps = 120;
  drill.local = local_options("8:delay=0", 1);
  drill.local.interval.guard.norm.on = false;
  drill.tells_loss = false;
  drill.before = [](Training& training, const LocalUpdater& updater, Rank rank, int k) {
    if (rank == 1) {
      training.rate = updater.interval().mode == Mode::kLocal && k > 80 && k <= 88 ? 1.0F : 0.05F;
    }
  };
  const Result4 result = run(drill);
  ASSERT_EQ(result.error, "");
  EXPECT_GE(result.count(Guard::kVariance, Action::kPullBack, -1), 1);
  expect_equal_end(result);
}

}  // namespace
}  // namespace sirtaki::world
