// Drains: the mean that they take, and the bits with which they take it.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/world/local_training.h"
#include "tests/world/sim_exchange.h"

namespace sirtaki::world {
namespace {

using local_updates::LocalOptions;

// A drain takes the mean of the models, so that a second one moves nothing.
TEST(LocalDrains, TakeThePlainMean) {
  SimExchanges net({.seed = 14, .size = 2});
  std::vector<float> before(2);
  std::vector<float> after(2);
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    const auto me = static_cast<std::size_t>(exchange.rank());
    TrainingOptions options;
    options.sizes = {1};
    LocalOptions local = local_options("4:delay=0");
    local.outer = {.on = true, .lr = 0.5, .momentum = 0.5, .nesterov = true};
    Training training(options, exchange.rank());
    const auto updater = updater_of(local, training.model(1), exchange);
    must(updater->start());
    for (int k = 0; k < 10; ++k) {
      training.step();
      must(updater->step({.lr = 0.05}));
    }
    before[me] = training.tensors[0][0];
    must(updater->drain());
    after[me] = training.tensors[0][0];
    must(updater->drain());
    require(training.tensors[0][0] == after[me], "a second drain moves the model");
  });
  EXPECT_EQ(error, "");
  EXPECT_NE(before[0], before[1]);
  EXPECT_EQ(after[0], (before[0] + before[1]) / 2);
  EXPECT_EQ(after[1], after[0]);
}

// However long it takes: the guard against late merges would add a delay, which hides nothing in a drain.
TEST(LocalDrains, AreNeverLate) {
  SimExchanges net({.seed = 2, .size = 2, .late_permille = 1000});
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    Training training({}, exchange.rank());
    const auto updater = updater_of(local_options("8:delay=0", 4), training.model(4), exchange);
    must(updater->start());
    training.step();
    must(updater->step({.lr = 0.05}));
    const TimePoint begin = exchange.now();
    must(updater->drain());
    require(exchange.now() - begin > std::chrono::seconds(10), "the drain was fast");
    require(updater->stats_json().find("\"merges_late\":0,") != std::string::npos, updater->stats_json());
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace sirtaki::world
