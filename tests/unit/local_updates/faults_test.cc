// Local updates while sums fail, come late, and ranks die: nothing is ever applied by half.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "tests/world/local_training.h"
#include "tests/world/seeds.h"
#include "tests/world/sim_exchange.h"

namespace sirtaki::world {
namespace {

using local_updates::LocalOptions;
using local_updates::LocalOutcome;
using local_updates::LocalUpdater;
using local_updates::Mode;

constexpr int kSteps = 60;

struct Fragment {
  std::vector<float> model;
  std::vector<float> anchor;
  std::uint64_t version = 0;

  bool operator==(const Fragment& other) const {
    return version == other.version && same(model, other.model) && same(anchor, other.anchor);
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

std::vector<Fragment> look(const local_updates::LocalModel& model, const LocalUpdater& updater) {
  std::vector<Fragment> fragments(model.fragments.size());
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    const local_updates::Anchor& anchor = updater.anchors()[p];
    fragments[p].model.resize(anchor.values().size());
    model.read(p, fragments[p].model);
    fragments[p].anchor.assign(anchor.values().begin(), anchor.values().end());
    fragments[p].version = anchor.version();
  }
  return fragments;
}

// Observations of all ranks: the anchor of a fragment and version is the same on all ranks that have it.
struct Seen {
  std::map<std::pair<std::size_t, std::uint64_t>, std::vector<float>> anchors;
  std::map<std::size_t, std::string> decisions;
  int merges = 0;
  int given_up = 0;
  int finished = 0;

  void anchor(std::size_t p, const Fragment& fragment) {
    const auto [place, fresh] = anchors.try_emplace({p, fragment.version}, fragment.anchor);
    require(fresh || Fragment::same(place->second, fragment.anchor), "two anchors of one version");
  }
  void decision(std::size_t number, const std::string& text) {
    const auto [place, fresh] = decisions.try_emplace(number, text);
    require(fresh || place->second == text, "two decisions: " + place->second + " and " + text);
  }
};

// One call of an updater, which must leave each fragment as it was or merged as a whole.
template <class Call>
Result<LocalOutcome> watched(const local_updates::LocalModel& model, LocalUpdater& updater, Seen& seen,
                             const Call& call) {
  const auto before = look(model, updater);
  Result<LocalOutcome> outcome = call();
  const auto after = look(model, updater);
  for (std::size_t p = 0; p < before.size(); ++p) {
    if (after[p].version == before[p].version) {
      require(after[p] == before[p], "a fragment changed without a merge");
    } else {
      require(after[p].version <= before[p].version + 2, "versions skip");
      ++seen.merges;
    }
    if (after[p].version > 0) {
      seen.anchor(p, after[p]);
    }
  }
  return outcome;
}

void train(SimExchanges::RankExchange& exchange, const LocalOptions& local, Seen& seen, bool drains) {
  Training training({}, exchange.rank());
  const local_updates::LocalModel model = training.model(local.fragments);
  const auto updater = updater_of(local, training.model(local.fragments), exchange);
  std::size_t decisions = 0;
  const auto note = [&](Result<LocalOutcome> outcome) {
    if (!outcome) {
      return false;
    }
    for (const auto& decision : outcome->decisions) {
      seen.decision(decisions++, to_string(decision) + std::to_string(decision.digest));
    }
    if (outcome->equalize_optimizer) {
      training.reset_optimizer();
    }
    return true;
  };
  if (!note(updater->start())) {
    return;
  }
  for (int k = 0; k < kSteps; ++k) {
    exchange.compute(std::chrono::milliseconds(10));
    training.step(updater->interval().mode == Mode::kSync);
    if (!note(watched(model, *updater, seen, [&] { return updater->step({.lr = 0.05}); }))) {
      return;
    }
    if (drains && k % 25 == 24 && !note(watched(model, *updater, seen, [&] { return updater->drain(); }))) {
      return;
    }
  }
  ++seen.finished;
  const std::string stats = updater->stats_json();
  seen.given_up += stats.find("\"merges_given_up\":0,") == std::string::npos ? 1 : 0;
}

// Collects lines of a log; the ranks of a simulation run one at a time.
class Lines final : public LogSink {
 public:
  explicit Lines(std::string& lines) : lines_(lines) {}
  void write(LogLevel /*level*/, std::string_view line) override { lines_ += line; }

 private:
  std::string& lines_;
};

// Trains with drains until a rank dies, or to the end. Returns the number of losses that this rank has met.
int lose(SimExchanges::RankExchange& exchange, const LocalOptions& local) {
  std::string lines;
  LoggerOptions errors;
  errors.level = LogLevel::kError;
  Logger log(errors, std::make_unique<Lines>(lines));
  Training training({}, exchange.rank());
  const auto updater = updater_of(local, training.model(local.fragments), exchange, &log);
  const auto follow = [&](const Result<LocalOutcome>& outcome) {
    if (outcome && outcome->equalize_optimizer) {
      training.reset_optimizer();
    }
    return outcome.status();
  };
  Status status = follow(updater->start());
  for (int k = 0; k < kSteps && status.ok(); ++k) {
    exchange.compute(std::chrono::milliseconds(10));
    training.step(updater->interval().mode == Mode::kSync);
    status = follow(updater->step({.lr = 0.05}));
    if (status.ok() && k % 25 == 24) {
      status = follow(updater->drain());
    }
  }
  if (status.ok()) {
    return 0;
  }
  require(status.code() == Code::kRanksChanged, status.to_string());
  for (const Status& later :
       {updater->step({.lr = 0.05}).status(), updater->drain().status(), updater->synchronous(true).status()}) {
    require(later.to_string() == status.to_string(), "a later call has another error: " + later.to_string());
  }
  require(lines.empty(), lines);
  return 1;
}

LocalOptions local_of(std::uint64_t seed) {
  static constexpr std::array kIntervals = {"4:delay=0", "6:delay=2", "8:delay=7", "3:delay=2", "5"};
  LocalOptions local = local_options(kIntervals[seed % kIntervals.size()], static_cast<int>(seed / 5 % 3) + 1);
  local.late_after = std::chrono::seconds(2);
  if (seed % 6 == 5) {  // drains send differences
    local = local_options("auto:compress=on,gain=0,warmup=0", static_cast<int>(seed % 3) + 1);
    set_codec(local, local_updates::kLadder);
    local.sync_round_steps = 2;
    local.late_after = std::chrono::seconds(2);
  }
  if (seed % 4 == 0) {
    local.outer = {.on = true, .lr = 0.7, .momentum = 0.8, .nesterov = true};
  }
  return local;
}

// I8, I9
TEST(LocalFaults, AMergeThatIsGivenUpChangesNoBit) {
  int given_up = 0;
  for (std::uint64_t seed = 1; seed <= last_seed(200); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimExchangeOptions options;
    options.seed = seed;
    options.size = 2 + static_cast<int>(seed % 3);
    options.abort_permille = 100;
    options.late_permille = 50;
    Seen seen;
    SimExchanges net(options);
    ASSERT_EQ(net.run([&](SimExchanges::RankExchange& exchange) { train(exchange, local_of(seed), seen, false); }), "");
    EXPECT_EQ(seen.finished, options.size);
    EXPECT_GT(seen.merges, 0);
    given_up += seen.given_up;
  }
  EXPECT_GT(given_up, 0);
}

// I8, I9: at every call that a rank makes of the network.
TEST(LocalFaults, ADeathAppliesNoHalfRound) {
  int deaths = 0;
  for (std::uint64_t seed = 1; seed <= last_seed(10); ++seed) {
    SimExchangeOptions options;
    options.seed = seed;
    options.size = 2 + static_cast<int>(seed % 3);
    options.abort_permille = 50;
    options.dies = static_cast<Rank>(seed % static_cast<std::uint64_t>(options.size));
    for (int at = 0;; at += 1 + static_cast<int>(seed % 7)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", dies at call " + std::to_string(at));
      options.dies_at = at;
      Seen seen;
      SimExchanges net(options);
      ASSERT_EQ(net.run([&](SimExchanges::RankExchange& exchange) { train(exchange, local_of(seed), seen, true); }),
                "");
      if (net.calls(options.dies) < at) {
        break;
      }
      ++deaths;
    }
  }
  EXPECT_GT(deaths, 20);
}

// In an elastic job, whatever call meets the loss: the program has to tell it from errors that end the training. The
// job goes on, so it is no error in the log.
TEST(LocalFaults, ALossThatOthersSurviveReachesTheProgramAsItIs) {
  int losses = 0;
  for (std::uint64_t seed = 1; seed <= last_seed(4); ++seed) {
    SimExchangeOptions options;
    options.seed = seed;
    options.size = 2 + static_cast<int>(seed % 3);
    options.abort_permille = 50;
    options.dies = static_cast<Rank>(seed % static_cast<std::uint64_t>(options.size));
    options.loss = Code::kRanksChanged;
    for (int at = 0;; at += 1 + static_cast<int>(seed % 7)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", dies at call " + std::to_string(at));
      options.dies_at = at;
      SimExchanges net(options);
      ASSERT_EQ(net.run([&](SimExchanges::RankExchange& exchange) { losses += lose(exchange, local_of(seed)); }), "");
      if (net.calls(options.dies) < at) {
        break;
      }
    }
  }
  EXPECT_GT(losses, 20);
}

TEST(LocalFaults, ADrainThatCannotEndSaysSo) {
  SimExchanges net({.seed = 4, .size = 2, .abort_permille = 1000});
  Seen seen;
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    Training training({}, exchange.rank());
    const auto updater = updater_of(local_options("4:delay=0"), training.model(1), exchange);
    must(updater->start());
    Status last;
    for (int k = 0; k < 400 && last.ok(); ++k) {
      training.step();
      last = updater->step({.lr = 0.05}).status();
      if (last.ok() && k == 100) {
        last = updater->drain().status();
      }
    }
    require(!last.ok() && updater->step({.lr = 0.05}).status().code() == last.code(), "the error stays");
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace sirtaki::world
