// Drains: the mean that they take, and the bits with which they take it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/local_updates/session_exchange.h"
#include "tests/world/local_training.h"
#include "tests/world/sim_exchange.h"
#include "tests/world/thread_world.h"

namespace sirtaki::world {
namespace {

using local_updates::LocalOptions;
using local_updates::LocalUpdater;
using local_updates::Mode;
using local_updates::SessionExchange;

using Tensors = std::vector<std::vector<float>>;

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

// Returns options of `auto` with local steps after two rounds, whose merges have one bit until a transfer is measured.
LocalOptions automatic(std::string_view codec) {
  LocalOptions options = local_options("auto:compress=on,gain=0,warmup=0", 2);
  set_codec(options, codec);
  options.sync_round_steps = 2;
  return options;
}

// The encodings of drains: the first one ends local steps for a while, the second one for good.
TEST(LocalDrains, SendInt8WhereAutoHasChosenFewBits) {
  const std::vector<std::pair<LocalOptions, std::int64_t>> cases = {
      {automatic(local_updates::kLadder), 1}, {automatic("twobit"), 0}, {automatic("int8"), 0}};
  for (const auto& [local, expected] : cases) {
    SCOPED_TRACE(local.codec);
    SimExchanges net({.seed = 21, .size = 3});
    std::vector<Tensors> models(3);
    const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
      Training training({}, exchange.rank());
      const auto updater = updater_of(local, training.model(local.fragments), exchange);
      must(updater->start());
      const auto step_locally = [&] {
        do {
          exchange.compute(std::chrono::milliseconds(10));
          training.step(updater->interval().mode == Mode::kSync);
          must(updater->step({.lr = 0.05}));
        } while (updater->interval().mode == Mode::kSync);
        training.step();
        must(updater->step({.lr = 0.05}));
        require(updater->interval().encoding > 0, "merges are not compressed");
      };
      const auto drained = [&](const auto& drain) {
        const std::size_t before = exchange.sends().size();
        drain();
        return std::vector<std::int64_t>(exchange.sends().begin() + static_cast<std::ptrdiff_t>(before),
                                         exchange.sends().end());
      };
      const std::vector<std::int64_t> all(2, expected);
      step_locally();
      require(drained([&] { must(updater->drain()); }) == all, "another encoding in a drain");
      const Tensors equal = training.tensors;
      require(drained([&] { must(updater->drain()); }).empty(), "a second drain sends something");
      require(training.tensors == equal, "a second drain moves the model");
      step_locally();
      require(drained([&] { must(updater->synchronous(true)); }) == all, "another encoding before synchronous steps");
      require(updater->interval().mode == Mode::kSync, "no synchronous steps");
      models[static_cast<std::size_t>(exchange.rank())] = training.tensors;
    });
    EXPECT_EQ(error, "");
    EXPECT_EQ(models[1], models[0]);
    EXPECT_EQ(models[2], models[0]);
  }
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

// ---- real streams and codecs ----

// Steps take a millisecond and merges a second, so that `auto` sends one bit an element.
class SlowExchange final : public local_updates::LocalExchange {
 public:
  explicit SlowExchange(SessionExchange& real) : real_(real) {}
  void end_step() { now_ += std::chrono::milliseconds(1); }

  Rank rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  TimePoint now() const override { return now_; }
  Status post(local_updates::Channel channel, ConstBytes mine) override { return real_.post(channel, mine); }
  std::optional<Result<local_updates::Reports>> received(local_updates::Channel channel, Duration timeout) override {
    return real_.received(channel, timeout);
  }
  Status send(int fragment, std::span<float> data, std::int64_t encoding) override {
    return real_.send(fragment, data, encoding);
  }
  std::optional<Status> sum(int fragment, Duration timeout) override { return real_.sum(fragment, timeout); }
  void abandon(int fragment) override { real_.abandon(fragment); }
  Duration transfer_time(int /*fragment*/) const override { return std::chrono::seconds(1); }
  Status take_residual(int fragment, std::span<float> out) override { return real_.take_residual(fragment, out); }
  void mark(const std::string& name, TimePoint begin, TimePoint end) override { real_.mark(name, begin, end); }
  Status broadcast(Rank root, Bytes data, Duration timeout) override { return real_.broadcast(root, data, timeout); }

 private:
  SessionExchange& real_;
  TimePoint now_{std::chrono::hours(1)};
};

constexpr std::size_t kNumel = 25'600;
constexpr std::size_t kBlock = 256;  // elements with one scale

// A training of two matrices, each a fragment, on a slow link.
struct SlowTraining {
  SlowTraining(engine::Session& session, const LocalOptions& local)
      : SlowTraining(session, local,
                     Training({.sizes = {std::int64_t{kNumel}, std::int64_t{kNumel}}}, session.rank())) {}
  SlowTraining(engine::Session& session, const LocalOptions& local, const Training& begun) : training(begun) {
    real = must(SessionExchange::open(session, model(), local));
    exchange = std::make_unique<SlowExchange>(*real);
    updater = updater_of(local, model(), *exchange);
  }

  local_updates::LocalModel model() {
    local_updates::LocalModel made = training.model(2);
    for (local_updates::LocalTensor& tensor : made.tensors) {
      tensor.dims = {256, 100};
    }
    return made;
  }
  void steps(int count) {
    for (int k = 0; k < count; ++k) {
      training.step(updater->interval().mode == Mode::kSync);
      exchange->end_step();
      must(updater->step({.lr = 0.05}));
    }
  }

  Training training;
  std::unique_ptr<SessionExchange> real;
  std::unique_ptr<SlowExchange> exchange;
  std::unique_ptr<LocalUpdater> updater;
};

LocalOptions slow(std::string_view codec) {
  LocalOptions local = local_options("auto:compress=on,gain=0,warmup=0,max=4,delay=0,guard=off", 2);
  set_codec(local, codec);
  local.outer = {.on = true, .lr = 0.7, .momentum = 0.5, .nesterov = true};
  local.sync_round_steps = 2;
  return local;
}

std::int64_t bytes_sent(const engine::Session& session) {
  constexpr std::string_view kKey = "\"bytes_sent\":";
  const std::string stats = session.stats_json();
  std::int64_t sum = 0;
  for (auto at = stats.find(kKey, stats.find("\"peers\":")); at != std::string::npos; at = stats.find(kKey, at + 1)) {
    sum += std::stoll(stats.substr(at + kKey.size()));
  }
  return sum;
}

// Anchors, and the models of all ranks before and after a drain.
struct Drained {
  explicit Drained(std::size_t ranks) : before(ranks), after(ranks), bytes(ranks), again(ranks) {}
  Tensors anchors;  // before the drain
  std::vector<Tensors> before;
  std::vector<Tensors> after;
  std::vector<std::int64_t> bytes;  // that each rank sent in the drain
  std::vector<std::int64_t> again;  // and in a second one
};

Drained drain(std::string_view codec, std::size_t ranks, std::int64_t in_force) {
  Drained drained(ranks);
  ThreadOptions options;
  options.size = static_cast<int>(ranks);
  options.ranks_per_host = 1;  // shared memory is not counted
  const std::string error = run_sessions(options, [&](engine::Session& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    SlowTraining slowly(session, slow(codec));
    must(slowly.updater->start());
    slowly.steps(25);
    require(slowly.updater->interval().encoding == in_force, to_string(slowly.updater->interval()));
    for (std::size_t p = 0; me == 0 && p < 2; ++p) {
      const auto values = slowly.updater->anchors()[p].values();
      drained.anchors.emplace_back(values.begin(), values.end());
    }
    drained.before[me] = slowly.training.tensors;
    const std::int64_t first = bytes_sent(session);
    must(slowly.updater->drain());
    const std::int64_t second = bytes_sent(session);
    drained.after[me] = slowly.training.tensors;
    must(slowly.updater->drain());
    require(slowly.training.tensors == drained.after[me], "a second drain moves the model");
    drained.bytes[me] = second - first;
    drained.again[me] = bytes_sent(session) - second;
  });
  EXPECT_EQ(error, "");
  return drained;
}

// Returns the largest error of the drained model, in units of the largest difference in its block, the mean over ranks.
double error_of(const Drained& drained) {
  const auto ranks = static_cast<double>(drained.before.size());
  double worst = 0;
  for (std::size_t t = 0; t < drained.anchors.size(); ++t) {
    for (std::size_t begin = 0; begin < kNumel; begin += kBlock) {
      double largest = 0;
      double wrong = 0;
      std::vector<double> mean(kBlock);
      for (const Tensors& model : drained.before) {
        double of_rank = 0;
        for (std::size_t i = 0; i < kBlock; ++i) {
          mean[i] += static_cast<double>(model[t][begin + i]) / ranks;
          of_rank = std::max(of_rank, std::abs(static_cast<double>(model[t][begin + i]) -
                                               static_cast<double>(drained.anchors[t][begin + i])));
        }
        largest += of_rank / ranks;
      }
      for (std::size_t i = 0; i < kBlock; ++i) {
        wrong = std::max(wrong, std::abs(static_cast<double>(drained.after[0][t][begin + i]) - mean[i]));
      }
      worst = std::max(worst, wrong / largest);
    }
  }
  return worst;
}

// A code is wrong by at most a 127th of the largest number in its block, since scales are powers of two. Where the sum
// is encoded again, so is that.
TEST(LocalDrains, InInt8AreNearTheExactMean) {
  for (const std::size_t ranks : {std::size_t{2}, std::size_t{4}}) {
    SCOPED_TRACE(ranks);
    const Drained few = drain(local_updates::kLadder, ranks, 3);
    const Drained exact = drain("onebit", ranks, 1);
    for (const Drained* drained : {&few, &exact}) {
      for (const Tensors& model : drained->after) {
        EXPECT_EQ(model, drained->after[0]);
      }
      EXPECT_NE(drained->before[1], drained->before[0]);
      EXPECT_LT(drained->again[0], 1'000) << "a second drain sends reports only";
    }
    EXPECT_LT(error_of(few), 2.05 / 127);
    EXPECT_GT(error_of(few), 1e-3) << "nothing was rounded";
    EXPECT_LT(error_of(exact), 1e-4) << "the program has named the codec";
    EXPECT_LT(few.bytes[0] * 10, exact.bytes[0] * 3);
  }
}

// A residual that is sent later would have to be in checkpoints.
TEST(LocalDrains, InInt8AreCheckpoints) {
  const std::string error = run_sessions({}, [&](engine::Session& session) {
    LocalOptions local = slow(local_updates::kLadder);
    SlowTraining first(session, local);
    must(first.updater->start());
    first.steps(25);
    must(first.updater->drain());
    const auto saved = must(first.updater->saved());
    const Training kept = first.training;
    first.steps(9);
    must(first.updater->drain());
    local.name = "again";
    SlowTraining second(session, local, kept);
    must(second.updater->restore(saved));
    second.steps(9);
    must(second.updater->drain());
    require(second.updater->interval().encoding == 3, to_string(second.updater->interval()));
    require(second.updater->anchors_digest() == first.updater->anchors_digest(), "other anchors");
    require(second.training.tensors == first.training.tensors, "another model");
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace sirtaki::world
