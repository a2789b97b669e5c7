#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "tests/world/local_training.h"
#include "tests/world/sim_exchange.h"

namespace sirtaki::world {
namespace {

using local_updates::LocalOptions;
using local_updates::LocalOutcome;
using local_updates::MergeRule;
using local_updates::Mode;

using Tensors = std::vector<std::vector<float>>;

bool same_bits(const Tensors& a, const Tensors& b) {
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size() ||
        (!a[t].empty() && std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0)) {
      return false;
    }
  }
  return a.size() == b.size();
}

Tensors plain_run(const TrainingOptions& options, Rank rank, int steps) {
  Training training(options, rank);
  for (int k = 0; k < steps; ++k) {
    training.step();
  }
  return training.tensors;
}

// Results of a run, indexed by rank.
struct Ran {
  explicit Ran(int size)
      : models(static_cast<std::size_t>(size)), anchors(models.size()), logs(models.size()), spans(models.size()) {}
  std::vector<Tensors> models;
  std::vector<std::vector<std::uint64_t>> anchors;  // digests after every step
  std::vector<std::vector<std::string>> logs;       // decisions
  std::vector<std::vector<SimExchanges::RankExchange::Span>> spans;
  std::string error;
};

void note(const LocalOutcome& outcome, std::vector<std::string>& log) {
  for (const auto& decision : outcome.decisions) {
    log.push_back(to_string(decision) + " " + std::to_string(decision.digest));
  }
}

struct RunOptions {
  SimExchangeOptions net;
  TrainingOptions training;
  LocalOptions local;
  int steps = 40;
  bool drain = false;
};

Ran run(const RunOptions& options) {
  Ran result(options.net.size);
  SimExchanges net(options.net);
  result.error = net.run([&](SimExchanges::RankExchange& exchange) {
    const auto me = static_cast<std::size_t>(exchange.rank());
    Training training(options.training, exchange.rank());
    const auto updater = updater_of(options.local, training.model(options.local.fragments), exchange);
    note(must(updater->start()), result.logs[me]);
    for (int k = 0; k < options.steps; ++k) {
      exchange.compute(std::chrono::milliseconds(10));
      training.step(updater->interval().mode == Mode::kSync);
      const LocalOutcome outcome = must(updater->step({.lr = 0.05, .loss = training.loss()}));
      note(outcome, result.logs[me]);
      if (outcome.equalize_optimizer) {
        training.reset_optimizer();
      }
      result.anchors[me].push_back(updater->anchors_digest());
    }
    if (options.drain) {
      note(must(updater->drain()), result.logs[me]);
      result.anchors[me].push_back(updater->anchors_digest());
    }
    result.models[me] = training.tensors;
    result.spans[me] = exchange.spans();
  });
  return result;
}

std::string text(const LocalOptions& options) {
  return "H " + std::to_string(options.interval.base) + ", D " + std::to_string(options.interval.delay) + ", F " +
         std::to_string(options.fragments);
}

TEST(LocalUpdates, TheTraceHasEveryRoundAndDrain) {
  RunOptions options;
  options.local = local_options("8:delay=2,warmup=4", 2);
  options.drain = true;
  const Ran result = run(options);
  ASSERT_EQ(result.error, "");
  std::vector<std::string> names;
  for (const auto& span : result.spans[0]) {
    names.push_back(span.name);
  }
  // Four synchronous steps, four rounds of eight, and the four steps that are left.
  const std::string local = "local updates, H 8, D 2, local: fixed, overlap";
  EXPECT_EQ(names, (std::vector<std::string>{"local updates, H 1, D 0, sync: warm-up, none", local, local, local, local,
                                             local, "local updates, drain"}));
  for (std::size_t i = 1; i < result.spans[0].size(); ++i) {
    EXPECT_EQ(result.spans[0][i].begin, result.spans[0][i - 1].end);
  }
}

class Lines final : public LogSink {
 public:
  explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}
  void write(LogLevel /*level*/, std::string_view line) override { lines_.emplace_back(line); }

 private:
  std::vector<std::string>& lines_;
};

// Returns the lines of all ranks on losses that are not reported. `reported`: one of so many steps; 0: none.
std::vector<std::string> said_of_losses(const std::string& interval, int reported) {
  std::vector<std::string> lines;
  SimExchanges net({.size = 3});
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    LoggerOptions logging;
    logging.level = LogLevel::kInfo;
    Logger log(logging, std::make_unique<Lines>(lines));
    Training training({}, exchange.rank());
    const auto updater = updater_of(local_options(interval), training.model(1), exchange, &log);
    must(updater->start());
    for (int k = 1; k <= 100; ++k) {
      exchange.compute(std::chrono::milliseconds(10));
      training.step(updater->interval().mode == Mode::kSync);
      must(updater->step(reported > 0 && k % reported == 0
                             ? local_updates::LocalStep{.lr = 0.05, .loss = training.loss()}
                             : local_updates::LocalStep{.lr = 0.05}));
    }
  });
  EXPECT_EQ(error, "");
  std::erase_if(lines, [](const std::string& line) { return line.find("report_loss") == std::string::npos; });
  return lines;
}

TEST(LocalUpdates, LossesThatNobodyReportsAreSaidOnce) {
  const auto lines = said_of_losses("6:delay=2,warmup=4", 0);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("local updates: the guard against a rising loss rests, because no rank has reported a loss "
                          "so far; call report_loss() with the loss of each step"),
            std::string::npos)
      << lines[0];
  EXPECT_TRUE(said_of_losses("6:delay=2,warmup=4", 1).empty());
  EXPECT_TRUE(said_of_losses("6:delay=2,warmup=4", 25).empty()) << "seldom";
  EXPECT_TRUE(said_of_losses("6:delay=2,warmup=4,guard=off", 0).empty());
}

// Rounds are shorter while the controller has to find the end of the warm-up than in other synchronous phases.
TEST(LocalUpdates, RoundsOfAWarmUpAreShort) {
  for (const auto& [interval, rounds] : {std::pair("8:warmup=auto", 5), std::pair("8:warmup=20", 2)}) {
    RunOptions options;
    options.local = local_options(interval, 1);
    options.steps = 20;
    const Ran result = run(options);
    ASSERT_EQ(result.error, "");
    const auto warms_up = [](const auto& span) { return span.name.find("warm-up") != std::string::npos; };
    EXPECT_EQ(std::ranges::count_if(result.spans[0], warms_up), rounds) << interval;
  }
}

TEST(LocalUpdates, DifferencesDepartInTheStepOfTheirSnapshot) {
  SimExchanges net({.seed = 5, .size = 2});
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    Training training({}, exchange.rank());
    const auto updater = updater_of(local_options("4:delay=1,warmup=0", 1), training.model(1), exchange);
    must(updater->start());
    for (int k = 1; k <= 12; ++k) {
      exchange.compute(std::chrono::milliseconds(10));
      training.step(updater->interval().mode == Mode::kSync);
      must(updater->step({.lr = 0.05, .loss = training.loss()}));
      const auto sends = static_cast<int>(exchange.sends().size());
      require(sends == k / 4, "step " + std::to_string(k) + ": " + std::to_string(sends));
    }
  });
  EXPECT_EQ(error, "");
}

// I3
TEST(LocalUpdates, OneRankIsThePlainOptimizer) {
  for (const char* interval : {"1", "2:delay=0", "3:delay=1", "8:delay=5", "5:delay=4"}) {
    for (const int fragments : {1, 3}) {
      RunOptions options;
      options.net.size = 1;
      options.local = local_options(interval, fragments);
      options.drain = true;
      const Ran result = run(options);
      ASSERT_EQ(result.error, "") << interval;
      EXPECT_TRUE(same_bits(result.models[0], plain_run(options.training, 0, options.steps)))
          << interval << ", " << fragments << " fragments";
    }
  }
}

// I4
TEST(LocalUpdates, RanksWithTheSameDataAreOneProcess) {
  for (const int size : {2, 4}) {
    for (const char* interval : {"2:delay=0", "8:delay=0", "4:delay=3", "3:delay=1"}) {
      for (const int fragments : {1, 4}) {
        RunOptions options;
        options.net.size = size;
        options.training.same_data = true;
        options.local = local_options(interval, fragments);
        options.drain = true;
        const Ran result = run(options);
        ASSERT_EQ(result.error, "") << interval;
        for (const Tensors& model : result.models) {
          EXPECT_TRUE(same_bits(model, plain_run(options.training, 0, options.steps))) << text(options.local);
        }
      }
    }
  }
}

double mean_of(const std::vector<Tensors>& models) {
  double sum = 0;
  for (const Tensors& model : models) {
    for (std::size_t t = 0; t < model.size(); ++t) {
      for (std::size_t i = 0; i < model[t].size(); ++i) {
        sum += static_cast<double>(model[t][i]) * static_cast<double>(1 + i % 5 + t);
      }
    }
  }
  return sum / static_cast<double>(models.size());
}

// I5: with steps that depend on nothing the mean of models is that of ranks that never meet.
TEST(LocalUpdates, MergesKeepTheMean) {
  for (const int size : {2, 4}) {
    for (const char* interval : {"4:delay=0", "4:delay=2", "8:delay=7"}) {
      RunOptions options;
      options.net.size = size;
      options.training.integers = true;
      options.local = local_options(interval, 2);
      options.local.interval.guard.on = false;  // such a walk alarms them
      const Ran result = run(options);
      ASSERT_EQ(result.error, "");
      std::vector<Tensors> apart;
      for (Rank rank = 0; rank < size; ++rank) {
        apart.push_back(plain_run(options.training, rank, options.steps));
      }
      EXPECT_NEAR(mean_of(result.models), mean_of(apart), 1e-6 * std::abs(mean_of(apart))) << interval;
      options.local.merge = MergeRule::kOverwrite;
      const double lost = mean_of(run(options).models);
      if (options.local.interval.delay > 0) {
        EXPECT_GT(std::abs(lost - mean_of(apart)), 1e-3 * std::abs(mean_of(apart))) << "overwriting loses steps";
      }
    }
  }
}

// I6, I7, I9
TEST(LocalUpdates, AnchorsAndDecisionsAreTheSameOnAllRanks) {
  for (const int size : {2, 3, 4}) {
    for (const char* interval : {"4:delay=0", "8:delay=3", "qsr:warmup=5", "6:delay=5"}) {
      for (const int fragments : {1, 3}) {
        RunOptions options;
        options.net.size = size;
        options.local = local_options(interval, fragments);
        options.drain = true;
        const Ran result = run(options);
        ASSERT_EQ(result.error, "") << interval;
        for (int rank = 1; rank < size; ++rank) {
          const auto r = static_cast<std::size_t>(rank);
          EXPECT_EQ(result.anchors[r], result.anchors[0]);
          EXPECT_EQ(result.logs[r], result.logs[0]);
          EXPECT_TRUE(same_bits(result.models[r], result.models[0])) << text(options.local);
        }
        EXPECT_GT(result.logs[0].size(), 3U);
      }
    }
  }
}

// I10
TEST(LocalUpdates, TwoRunsAreTheSame) {
  RunOptions options;
  options.net.size = 3;
  options.local = local_options("5:delay=2", 3);
  const Ran first = run(options);
  options.net.seed = 77;
  options.net.longest_delay = std::chrono::milliseconds(3);
  const Ran second = run(options);
  ASSERT_EQ(first.error + second.error, "");
  EXPECT_EQ(first.anchors, second.anchors) << "messages came at other times";
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(same_bits(first.models[r], second.models[r]));
  }
}

TEST(LocalUpdates, OuterMomentumGoesOn) {
  for (const char* interval : {"4:delay=0", "4:delay=2"}) {
    RunOptions options;
    options.net.size = 2;
    options.local = local_options(interval, 2);
    options.local.outer = {.on = true, .lr = 0.7, .momentum = 0.9, .nesterov = true};
    options.drain = true;
    const Ran result = run(options);
    ASSERT_EQ(result.error, "");
    EXPECT_EQ(result.anchors[0], result.anchors[1]);
    EXPECT_TRUE(same_bits(result.models[0], result.models[1]));
    // A learning rate of 1 without momentum is no outer optimizer, but for rounding.
    options.local.outer = {.on = true, .lr = 1.0};
    const Ran plain_outer = run(options);
    options.local.outer = {};
    const Ran none = run(options);
    EXPECT_NEAR(mean_of(plain_outer.models), mean_of(none.models), 1e-3);
  }
}

// The steps since the snapshot stay on top of an anchor that the outer optimizer has moved.
TEST(LocalUpdates, StepsSinceASnapshotStayWithOuterMomentum) {
  constexpr int kInterval = 4;
  constexpr int kDelay = 2;
  SimExchanges net({.seed = 13, .size = 2});
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    TrainingOptions options;
    options.sizes = {40};
    options.integers = true;
    LocalOptions local = local_options("4:delay=2,guard=off");
    local.outer = {.on = true, .lr = 0.5, .momentum = 0.5, .nesterov = true};
    Training training(options, exchange.rank());
    Training alone(options, exchange.rank());
    const auto updater = updater_of(local, training.model(1), exchange);
    must(updater->start());
    std::vector<float> snapshot;
    for (int k = 1; k <= 3 * kInterval + kDelay; ++k) {
      training.step();
      alone.step();
      must(updater->step({.lr = 0.05}));
      if (k % kInterval == 0) {
        snapshot = alone.tensors[0];
      }
      if (k % kInterval != kDelay || k < kInterval) {
        continue;
      }
      for (std::size_t i = 0; i < snapshot.size(); ++i) {
        const float since = alone.tensors[0][i] - snapshot[i];
        const float on_top = training.tensors[0][i] - updater->anchors()[0].values()[i];
        require(std::abs(on_top - since) < 1,
                "step " + std::to_string(k) + ": " + std::to_string(on_top) + " and not " + std::to_string(since));
      }
    }
  });
  EXPECT_EQ(error, "");
}

TEST(LocalUpdates, SharesAreWeights) {
  SimExchanges net({.seed = 3, .size = 2});
  std::vector<float> ends(2);
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    TrainingOptions options;
    options.sizes = {1};
    Training training(options, exchange.rank());
    training.tensors[0][0] = 1.0F;
    const auto updater = updater_of(local_options("1"), training.model(1), exchange);
    must(updater->start());
    must(updater->drain());
  });
  EXPECT_EQ(error, "");
  SimExchanges weighted({.seed = 3, .size = 2});
  const std::string failure = weighted.run([&](SimExchanges::RankExchange& exchange) {
    TrainingOptions options;
    options.sizes = {1};
    Training training(options, exchange.rank());
    training.tensors[0][0] = 1.0F;
    const auto updater = updater_of(local_options("2:delay=0"), training.model(1), exchange);
    must(updater->start());
    for (int k = 0; k < 2; ++k) {
      training.tensors[0][0] += exchange.rank() == 0 ? 4.0F : 0.0F;
      must(updater->step({.share = exchange.rank() == 0 ? 3 : 1}));
    }
    ends[static_cast<std::size_t>(exchange.rank())] = training.tensors[0][0];
  });
  EXPECT_EQ(failure, "");
  EXPECT_EQ(ends[0], (3 * 9.0F + 1.0F) / 4);
  EXPECT_EQ(ends[1], ends[0]);
}

TEST(LocalUpdates, SynchronousStepsComeAtOnceAndGo) {
  SimExchanges net({.seed = 5, .size = 2});
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    Training training({}, exchange.rank());
    const auto updater = updater_of(local_options("6:delay=3", 2), training.model(2), exchange);
    must(updater->start());
    const auto steps = [&](int count) {
      for (int k = 0; k < count; ++k) {
        training.step();
        must(updater->step({.lr = 0.05}));
      }
    };
    require(updater->interval().mode == Mode::kLocal, "local from the beginning");
    steps(10);
    must(updater->synchronous(true));
    require(updater->interval().mode == Mode::kSync, "synchronous at once");
    const Tensors equal = training.tensors;
    for (std::size_t k = 0; k < 5; ++k) {
      must(updater->step({.lr = 0.05}));
    }
    must(updater->synchronous(false));
    for (std::size_t k = 0; k < 11; ++k) {
      require(updater->interval().mode == Mode::kSync, "until the next decision");
      must(updater->step({.lr = 0.05}));
    }
    require(updater->interval().mode == Mode::kLocal, "and then as before");
    require(same_bits(equal, training.tensors), "synchronous steps are the program's");
  });
  EXPECT_EQ(error, "");
}

TEST(LocalUpdates, SavedStateGoesOnBitForBit) {
  for (const char* interval : {"4:delay=0", "4:delay=2"}) {
    SimExchanges net({.seed = 9, .size = 2});
    const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
      LocalOptions local = local_options(interval, 2);
      local.outer = {.on = true, .lr = 0.7, .momentum = 0.9, .nesterov = true};
      Training first({}, exchange.rank());
      auto updater = updater_of(local, first.model(2), exchange);
      must(updater->start());
      const auto steps = [&](Training& training, int count) {
        for (int k = 0; k < count; ++k) {
          training.step();
          must(updater->step({.lr = 0.05}));
        }
      };
      steps(first, 10);
      if (local.interval.delay > 0) {
        require(!updater->saved().ok(), "nothing is saved in the middle of a merge");
      }
      must(updater->drain());
      const auto saved = must(updater->saved());
      Training second = first;
      steps(first, 9);
      const std::uint64_t expected = updater->anchors_digest();
      updater = nullptr;
      updater = updater_of(local, second.model(2), exchange);
      must(updater->restore(saved));
      steps(second, 9);
      require(updater->anchors_digest() == expected, "other anchors");
      require(same_bits(first.tensors, second.tensors), "another model");
      updater = updater_of(local_options("5:delay=0", 2), second.model(2), exchange);
      require(updater->restore(saved).code() == Code::kCorrupt, "of other options");
      updater = updater_of(local, second.model(2), exchange);
      for (std::size_t size = 0; size < saved.size(); size += 7) {
        require(!updater->restore(std::span(saved).first(size)).ok(), "cut off");
      }
    });
    EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace sirtaki::world
