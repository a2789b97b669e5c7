// Local updates in an elastic job in one process: a loss ends merges in flight with its own error, and the survivors
// begin anew in the next session.
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "runtime/local_updates/session_exchange.h"
#include "tests/scenarios/elastic/support.h"
#include "tests/world/local_training.h"

namespace sirtaki::engine {
namespace {

using local_updates::LocalOptions;
using local_updates::LocalUpdater;
using local_updates::SessionExchange;
using world::Training;

// The place of the loss: a step before which the victim ends. In a round of four steps the snapshot is taken behind the
// fourth one, and the merge is due behind the sixth.
struct Loss {
  int step = 0;
  bool drains = false;  // the others drain then, and wait for the victim
  const char* codec = "";
};

class LocalLossTest : public testing::TestWithParam<Loss> {};

LocalOptions options_of(const Loss& loss) {
  LocalOptions options = world::local_options("4:delay=2", 2);
  options.codec = loss.codec;
  options.outer = {.on = true, .lr = 0.7, .momentum = 0.5, .nesterov = true};
  return options;
}

// Trains until a rank is lost. Returns the error.
Status train(Process& process, Training& training, const Loss& loss, Rank victim) {
  const LocalOptions options = options_of(loss);
  SRT_ASSIGN(const auto exchange, SessionExchange::open(process.session(), training.model(options.fragments), options));
  SRT_ASSIGN(const auto updater, LocalUpdater::make(options, training.model(options.fragments), *exchange, nullptr));
  SRT_TRY(updater->start().status());
  for (int k = 0;; ++k) {
    if (k == loss.step) {
      if (process.slot() == victim) {
        return {};
      }
      if (loss.drains) {
        SRT_TRY(updater->drain().status());
      }
    }
    training.step();
    SRT_TRY(updater->step({.lr = 0.05}).status());
  }
}

TEST_P(LocalLossTest, SurvivorsBeginAnewInTheNextSession) {
  constexpr Rank kVictim = 1;
  Hub hub(3, 2);
  std::mutex mutex;
  std::vector<std::vector<std::vector<float>>> models;
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    Training training({}, process.slot());
    const Status lost = train(process, training, GetParam(), kVictim);
    if (process.slot() == kVictim) {
      EXPECT_EQ(lost.to_string(), "ok");
      return process.die();
    }
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_EQ(lost.blame().rank, kVictim);
    EXPECT_EQ(process.session().stats_json().find("streams.gate_ns"), std::string::npos) << "merges have a vote";
    ASSERT_EQ(process.regroup().to_string(), "ok");
    Training again({}, 0);  // the adapter makes models equal
    const LocalOptions options = options_of(GetParam());
    const auto exchange = world::must(SessionExchange::open(process.session(), again.model(2), options));
    const auto updater = world::updater_of(options, again.model(options.fragments), *exchange);
    world::must(updater->start());
    for (int k = 0; k < 12; ++k) {
      again.step();
      world::must(updater->step({.lr = 0.05}));
    }
    world::must(updater->drain());
    EXPECT_NE(updater->stats_json().find("\"merges_given_up\":0,"), std::string::npos) << updater->stats_json();
    const std::lock_guard lock(mutex);
    models.push_back(again.tensors);
  });
  ASSERT_EQ(models.size(), 2U);
  EXPECT_EQ(models[0], models[1]);
}

INSTANTIATE_TEST_SUITE_P(EachPlace, LocalLossTest,
                         testing::Values(Loss{0}, Loss{3}, Loss{4}, Loss{5}, Loss{6}, Loss{7}, Loss{5, true},
                                         Loss{4, false, "int8:min=0,ndim=0"}, Loss{5, true, "int8:min=0,ndim=0"}));

}  // namespace
}  // namespace sirtaki::engine
