// Local updates over sessions: real threads, sockets, streams and codecs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <mutex>
#include <utility>

#include "runtime/local_updates/session_exchange.h"
#include "tests/world/local_training.h"
#include "tests/world/thread_world.h"

namespace sirtaki::world {
namespace {

using local_updates::LocalOptions;
using local_updates::LocalOutcome;
using local_updates::Mode;
using local_updates::SessionExchange;
using Tensors = std::vector<std::vector<float>>;

constexpr const char* kSmall =
    "schedule.fusion_bytes = \"4KiB\"\nschedule.partition_bytes = \"8KiB\"\nschedule.credit_bytes = \"64KiB\"\n"
    "net.eager_bytes = \"2KiB\"\nnet.exchange_bytes = \"1KiB\"\nnet.fragment_bytes = \"4KiB\"\n";

constexpr auto kPatience = std::chrono::seconds(20);

const std::vector<std::int64_t> kSizes = {300, 7, 0, 5000, 64, 1, 2500, 900};

// Final states, one entry per rank.
struct FinalStates {
  explicit FinalStates(int size)
      : models(static_cast<std::size_t>(size)), anchors(models.size()), stats(models.size()) {}
  std::vector<Tensors> models;
  std::vector<std::vector<std::uint64_t>> anchors;
  std::vector<std::string> stats;

  void expect_equal_anchors() const {
    for (const auto& one : anchors) {
      EXPECT_EQ(one, anchors[0]);
    }
  }
  void expect_equal_models() const {
    for (const Tensors& model : models) {
      for (std::size_t t = 0; t < model.size(); ++t) {
        EXPECT_TRUE(model[t].empty() || std::memcmp(model[t].data(), models[0][t].data(), model[t].size() * 4) == 0);
      }
    }
  }
};

struct Job {
  int size = 2;
  LocalOptions local;
  std::vector<std::vector<Rank>> sets = {};  // that train beside each other; empty: all ranks train together
  TrainingOptions training = {.sizes = kSizes};
  int steps = 30;
  bool drain = true;
  std::string toml = kSmall;
};

std::string train(const Job& job, FinalStates& ends) {
  ThreadOptions options;
  options.size = job.size;
  options.options_toml = job.toml;
  return run_sessions(options, [&](engine::Session& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    Training training(job.training, session.rank());
    LocalOptions local = job.local;
    for (const std::vector<Rank>& set : job.sets) {
      local.ranks = std::ranges::find(set, session.rank()) == set.end() ? local.ranks : set;
    }
    const auto exchange = must(SessionExchange::open(session, training.model(local.fragments), local));
    const auto updater = updater_of(local, training.model(local.fragments), *exchange);
    must(updater->start());
    for (int k = 0; k < job.steps; ++k) {
      training.step(updater->interval().mode == Mode::kSync);
      const LocalOutcome outcome = must(updater->step({.lr = 0.05}));
      if (outcome.equalize_optimizer) {
        training.reset_optimizer();
      }
      ends.anchors[me].push_back(updater->anchors_digest());
    }
    if (job.drain) {
      must(updater->drain());
      ends.anchors[me].push_back(updater->anchors_digest());
    }
    ends.models[me] = training.tensors;
    ends.stats[me] = updater->stats_json();
  });
}

TEST(LocalThreads, OneRankIsThePlainOptimizer) {
  Job job;
  job.size = 1;
  job.local = local_options("4:delay=2", 3);
  FinalStates ends(1);
  ASSERT_EQ(train(job, ends), "");
  Training plain(job.training, 0);
  for (int k = 0; k < job.steps; ++k) {
    plain.step();
  }
  ends.models.push_back(plain.tensors);
  ends.expect_equal_models();
}

TEST(LocalThreads, SetsOfRanksTrainBesideEachOther) {
  for (const char* interval : {"3:delay=0", "4:delay=2"}) {
    Job job;
    job.size = 4;
    job.local = local_options(interval, 3);
    job.sets = {{0, 2}, {1, 3}};
    FinalStates ends(job.size);
    ASSERT_EQ(train(job, ends), "") << interval;
    EXPECT_EQ(ends.anchors[0], ends.anchors[2]);
    EXPECT_EQ(ends.anchors[1], ends.anchors[3]);
    EXPECT_NE(ends.anchors[0], ends.anchors[1]);
    EXPECT_EQ(ends.models[0], ends.models[2]);
    EXPECT_EQ(ends.models[1], ends.models[3]);
  }
}

TEST(LocalThreads, RanksWithTheSameDataAreOneProcess) {
  for (const int size : {2, 4}) {
    for (const char* interval : {"3:delay=0", "4:delay=2"}) {
      Job job;
      job.size = size;
      job.training.same_data = true;
      job.local = local_options(interval, 3);
      FinalStates ends(size);
      ASSERT_EQ(train(job, ends), "") << interval;
      Training plain(job.training, 0);
      for (int k = 0; k < job.steps; ++k) {
        plain.step();
      }
      ends.models.push_back(plain.tensors);
      ends.expect_equal_models();
    }
  }
}

TEST(LocalThreads, AnchorsAreTheSameAtEveryVersion) {
  for (const char* codec :
       {"", "fp16", "int8:min=0,ndim=0", "twobit:min=0,ndim=0", "group_topk:min=0,ndim=0,wire=scatter",
        "onebit:min=0,ndim=0", "threshold_sparse:min=0,ndim=0", "powersgd:min=0"}) {
    for (const char* interval : {"4:delay=0", "5:delay=3"}) {
      Job job;
      job.size = 3;
      job.local = local_options(interval, 2);
      job.local.codec = codec;
      job.local.outer = {.on = true, .lr = 0.7, .momentum = 0.5, .nesterov = true};
      FinalStates ends(3);
      ASSERT_EQ(train(job, ends), "") << codec << ", " << interval;
      ends.expect_equal_anchors();
      ends.expect_equal_models();
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

// Residuals of a codec stay in the model of their rank: no update is lost or applied twice.
TEST(LocalThreads, CodecsKeepTheMean) {
  std::vector<std::uint64_t> dense;
  for (const char* codec :
       {"", "int8:min=0,ndim=0", "int8:min=0,ndim=0,wire=scatter", "twobit:min=0,ndim=0", "group_topk:min=0,ndim=0",
        "group_topk:min=0,ndim=0,wire=scatter", "onebit:min=0,ndim=0", "threshold_sparse:min=0,ndim=0"}) {
    for (const char* interval : {"4:delay=0", "5:delay=3"}) {
      Job job;
      job.size = 2;
      job.drain = false;
      job.training.integers = true;
      job.local = local_options(interval, 2);
      job.local.interval.guard.on = false;
      job.local.codec = codec;
      FinalStates ends(2);
      ASSERT_EQ(train(job, ends), "") << codec;
      std::vector<Tensors> apart;
      for (Rank rank = 0; rank < 2; ++rank) {
        Training plain(job.training, rank);
        for (int k = 0; k < job.steps; ++k) {
          plain.step();
        }
        apart.push_back(plain.tensors);
      }
      EXPECT_NEAR(mean_of(ends.models), mean_of(apart), 1e-5 * std::abs(mean_of(apart))) << codec << ", " << interval;
      EXPECT_NE(ends.stats[0].find("\"merges_given_up\":0,"), std::string::npos) << ends.stats[0];
      // The mean must not be kept just because nothing was compressed.
      if (codec == std::string()) {
        dense.push_back(ends.anchors[0].back());
      }
      EXPECT_EQ(std::ranges::count(dense, ends.anchors[0].back()), codec == std::string() ? 1 : 0) << codec;
    }
  }
}

// Each encoding of a fragment sends a part of the difference, and keeps the rest as its residual.
TEST(LocalThreads, EncodingsOfAFragmentSendWhatIsNotInTheirResidual) {
  constexpr std::int64_t kNumel = 12'800;
  const std::vector<std::int64_t> encodings = {0, 1, 3, 2, 1, 0, 3};
  std::vector<std::vector<double>> kept(encodings.size(), std::vector<double>(kNumel));
  std::vector<std::vector<float>> sums(encodings.size());
  std::mutex mutex;
  ThreadOptions options;
  options.size = 3;
  options.options_toml = kSmall;
  const std::string error = run_sessions(options, [&](engine::Session& session) {
    LocalOptions local = local_options("auto:compress=on", 1);
    set_codec(local, local_updates::kLadder);
    Training training({.sizes = {kNumel}}, session.rank());
    local_updates::LocalModel model = training.model(1);
    model.tensors[0].dims = {100, kNumel / 100};
    const auto exchange = must(SessionExchange::open(session, model, local));
    for (std::size_t k = 0; k < encodings.size(); ++k) {
      training.step();
      std::vector<float> data = training.tensors[0];
      std::vector<float> residual(data.size());
      const std::vector<float> given = data;
      must(exchange->send(0, data, encodings[k]));
      must(exchange->sum(0, kPatience).value());
      if (encodings[k] > 0) {
        must(exchange->take_residual(0, residual));
        require(std::ranges::any_of(residual, [](float value) { return value != 0; }), "nothing was compressed");
      }
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < data.size(); ++i) {
        kept[k][i] += static_cast<double>(given[i]) - static_cast<double>(residual[i]);
      }
      require(sums[k].empty() || sums[k] == data, "ranks have different sums");
      sums[k] = data;
    }
    require(!exchange->send(0, training.tensors[0], 4).ok(), "an unknown encoding");
  });
  ASSERT_EQ(error, "");
  for (std::size_t k = 0; k < encodings.size(); ++k) {
    for (std::size_t i = 0; i < kNumel; ++i) {
      ASSERT_NEAR(static_cast<double>(sums[k][i]), kept[k][i], 1e-4)
          << "encoding " << encodings[k] << ", element " << i;
    }
  }
}

// Signals that rank 0 waits for a sum; until then rank 1 withholds its part of it.
class HeldBackExchange final : public local_updates::LocalExchange {
 public:
  HeldBackExchange(SessionExchange& real, std::promise<void>& waits) : real_(real), waits_(&waits) {}
  Rank rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  TimePoint now() const override { return real_.now(); }
  Status post(local_updates::Channel channel, ConstBytes mine) override { return real_.post(channel, mine); }
  std::optional<Result<local_updates::Reports>> received(local_updates::Channel channel, Duration timeout) override {
    return real_.received(channel, timeout);
  }
  Status send(int fragment, std::span<float> data, std::int64_t encoding) override {
    if (rank() == 1 && waits_ != nullptr &&
        std::exchange(waits_, nullptr)->get_future().wait_for(kPatience) != std::future_status::ready) {
      return Status(Code::kTimeout, "rank 0 has not waited for a sum");
    }
    return real_.send(fragment, data, encoding);
  }
  std::optional<Status> sum(int fragment, Duration timeout) override {
    if (rank() == 0 && timeout > Duration(0) && waits_ != nullptr) {
      std::exchange(waits_, nullptr)->set_value();
    }
    return real_.sum(fragment, timeout);
  }
  void abandon(int fragment) override { real_.abandon(fragment); }
  Duration transfer_time(int fragment) const override { return real_.transfer_time(fragment); }
  Status take_residual(int fragment, std::span<float> out) override { return real_.take_residual(fragment, out); }
  void mark(const std::string& name, TimePoint begin, TimePoint end) override { real_.mark(name, begin, end); }
  Status broadcast(Rank root, Bytes data, Duration timeout) override { return real_.broadcast(root, data, timeout); }

 private:
  SessionExchange& real_;
  std::promise<void>* waits_;
};

// A rank stalls between its report and its part of the sum: the other waits, and the merge is the same as without a
// stall.
TEST(LocalThreads, AStalledRankIsWaitedFor) {
  for (const char* codec : {"", "int8:min=0,ndim=0"}) {
    Job job;
    job.local = local_options("6:delay=2", 1);
    job.local.codec = codec;
    FinalStates expected(2);
    ASSERT_EQ(train(job, expected), "");
    std::promise<void> waits;
    ThreadOptions options;
    options.size = 2;
    options.options_toml = kSmall;
    FinalStates ends(2);
    const std::string error = run_sessions(options, [&](engine::Session& session) {
      const auto me = static_cast<std::size_t>(session.rank());
      Training training(job.training, session.rank());
      const auto real = must(SessionExchange::open(session, training.model(1), job.local));
      HeldBackExchange exchange(*real, waits);
      const auto updater = updater_of(job.local, training.model(1), exchange);
      must(updater->start());
      for (int k = 1; k <= job.steps; ++k) {
        training.step();
        must(updater->step({.lr = 0.05}));
        ends.anchors[me].push_back(updater->anchors_digest());
      }
      must(updater->drain());
      ends.anchors[me].push_back(updater->anchors_digest());
      ends.models[me] = training.tensors;
      ends.stats[me] = updater->stats_json();
    });
    ASSERT_EQ(error, "");
    ends.expect_equal_anchors();
    ends.expect_equal_models();
    EXPECT_EQ(ends.anchors[0], expected.anchors[0]);
    EXPECT_NE(ends.stats[0].find("\"merges_given_up\":0,"), std::string::npos) << ends.stats[0];
  }
}

std::int64_t messages_sent(const engine::Session& session) {
  constexpr std::string_view kKey = "\"messages_sent\":";
  const std::string stats = session.stats_json();
  const std::string::size_type peers = stats.find("\"peers\":");
  std::int64_t sum = 0;
  for (auto at = stats.find(kKey, peers); at != std::string::npos; at = stats.find(kKey, at + 1)) {
    sum += std::stoll(stats.substr(at + kKey.size()));
  }
  return sum;
}

TEST(LocalThreads, AReportForWhichStepsWaitTakesOneExchange) {
  constexpr int kRounds = 100;
  ThreadOptions options;
  options.size = 3;
  options.options_toml = kSmall;
  const std::string error = run_sessions(options, [&](engine::Session& session) {
    Training training({.sizes = kSizes}, session.rank());
    const auto exchange = must(SessionExchange::open(session, training.model(1), local_options("4", 1)));
    for (const auto kind : {local_updates::ReportKind::kSnapshot, local_updates::ReportKind::kVote}) {
      std::int64_t before = 0;
      for (int k = 0; k <= kRounds; ++k) {
        std::vector<std::byte> mine(24, static_cast<std::byte>(2 * k + session.rank()));
        mine.back() = std::byte{255};
        must(exchange->post({kind, 0}, mine));
        const auto reports = must(exchange->received({kind, 0}, kPatience).value());
        for (Rank rank = 0; rank < options.size; ++rank) {
          mine.assign(24, static_cast<std::byte>(2 * k + rank));
          mine.back() = std::byte{255};
          require(reports[static_cast<std::size_t>(rank)] == mine, "a report has changed on its way");
        }
        before = k == 0 ? messages_sent(session) : before;
      }
      const std::int64_t sent = messages_sent(session) - before;
      // Messages of the first use may leave late. An exchange of sizes would be a message more for each report.
      require(sent < std::int64_t{kRounds} * (options.size - 1) * 3 / 2, "sent " + std::to_string(sent) + " messages");
    }
  });
  EXPECT_EQ(error, "");
}

TEST(LocalThreads, ARankInJoinIsNamed) {
  std::promise<void> told;
  ThreadOptions options;
  options.size = 2;
  options.options_toml = kSmall;
  const std::string error = run_sessions(options, [&](engine::Session& session) {
    Training training({.sizes = kSizes}, session.rank());
    const auto exchange = must(SessionExchange::open(session, training.model(1), local_options("4", 1)));
    if (session.rank() == 1) {
      require(!session.join(std::chrono::milliseconds(1)).has_value(), "the other rank has not joined");
      require(told.get_future().wait_for(kPatience) == std::future_status::ready, "rank 0 got no answer");
      return;
    }
    must(exchange->post({local_updates::ReportKind::kVote, 0}, std::vector<std::byte>(17)));
    const auto reports = exchange->received({local_updates::ReportKind::kVote, 0}, kPatience);
    told.set_value();
    require(reports.has_value() && reports->status().code() == Code::kMismatch, "a rank in join() votes");
    require(reports->status().to_string().find("rank 1 waits in join()") != std::string::npos,
            reports->status().to_string());
  });
  EXPECT_EQ(error, "");
}

// Invariant I7.
TEST(LocalThreads, BuffersAreEqualAfterADrain) {
  struct Buffers {
    std::vector<float> mean;
    std::vector<float> variance;
    std::vector<std::int64_t> count;
    bool operator==(const Buffers&) const = default;
  };
  std::vector<Buffers> all(2);
  ThreadOptions options;
  options.size = 2;
  const std::string error = run_sessions(options, [&](engine::Session& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    Buffers& mine = all[me];
    mine = me == 0 ? Buffers{{1, 2}, {1, 0}, {7}} : Buffers{{3, 2}, {2, 4}, {9}};
    const auto view = [](auto& values, DType dtype) {
      return TensorView{
          reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size()), dtype, {}};
    };
    std::vector<local_updates::LocalBuffer> buffers(3);
    buffers[0] = {"mean", view(mine.mean, DType::kF32), local_updates::BufferRule::kMean, -1};
    buffers[1] = {"var", view(mine.variance, DType::kF32), local_updates::BufferRule::kVariance, 0};
    buffers[2] = {"count", view(mine.count, DType::kI64), local_updates::BufferRule::kMost, -1};
    Training training({.sizes = kSizes}, session.rank());
    const LocalOptions local = local_options("4:delay=1", 2);
    const auto exchange = must(SessionExchange::open(session, training.model(2), local));
    const auto updater = updater_of(local, training.model(2, buffers), *exchange);
    must(updater->start());
    for (int k = 0; k < 6; ++k) {
      training.step();
      must(updater->step({.lr = 0.05}));
    }
    must(updater->drain());
  });
  ASSERT_EQ(error, "");
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0].mean, (std::vector<float>{2, 2}));
  EXPECT_EQ(all[0].variance, (std::vector<float>{2.5F, 2}));
  EXPECT_EQ(all[0].count, (std::vector<std::int64_t>{9}));
}

TEST(LocalThreads, RanksWithOtherOptionsGetAnError) {
  ThreadOptions options;
  options.size = 2;
  const std::string error = run_sessions(options, [&](engine::Session& session) {
    Training training({.sizes = kSizes}, session.rank());
    const LocalOptions local = local_options(session.rank() == 0 ? "4" : "5", 1);
    const auto exchange = must(SessionExchange::open(session, training.model(1), local));
    const auto updater = updater_of(local, training.model(1), *exchange);
    require(updater->start().status().code() == Code::kMismatch, "other options go unnoticed");
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace sirtaki::world
