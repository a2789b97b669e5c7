// The parts of local updates alone: options, anchors, layout, reports, buffers, measurements, memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/local_updates/anchor.h"
#include "runtime/local_updates/buffers.h"
#include "runtime/local_updates/reports.h"
#include "runtime/local_updates/round_meter.h"
#include "runtime/local_updates/scratch.h"
#include "tests/world/local_training.h"
#include "tests/world/sim_exchange.h"

namespace sirtaki::world {
namespace {

using local_updates::BufferRule;
using local_updates::LocalBuffer;
using local_updates::LocalModel;
using local_updates::LocalOptions;
using local_updates::LocalTensor;

TEST(LocalOptions, SayWhatCannotBe) {
  const auto expect_refused = [](const auto& change, const std::string& word) {
    LocalOptions options = local_options("4");
    EXPECT_TRUE(check(options).ok());
    change(options);
    const Status status = check(options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.text().find(word), std::string::npos) << status.text();
    EXPECT_NE(digest(options), digest(local_options("4"))) << "or it would not matter";
  };
  expect_refused([](LocalOptions& o) { o.fragments = -1; }, "fragments");
  expect_refused([](LocalOptions& o) { o.fragments = 100000; }, "fragments");
  expect_refused([](LocalOptions& o) { o.sync_round_steps = 0; }, "steps");
  expect_refused([](LocalOptions& o) { o.warmup_round_steps = 0; }, "steps");
  expect_refused([](LocalOptions& o) { o.outer = {.on = true, .lr = -1}; }, "outer");
  expect_refused([](LocalOptions& o) { o.outer = {.on = true, .lr = 1, .momentum = 1}; }, "outer");
  expect_refused([](LocalOptions& o) { o.outer = {.on = true, .lr = 1, .momentum = 0, .nesterov = true}; }, "Nesterov");
  expect_refused([](LocalOptions& o) { o.codec = "nonsense"; }, "nonsense");
  expect_refused([](LocalOptions& o) { o.codec = "group_topk:momentum=0.9"; }, "momentum");
  expect_refused([](LocalOptions& o) { o.codec = "int8:ef=off"; }, "ef");
  expect_refused([](LocalOptions& o) { o.interval.may_compress = true; }, "codec");
  expect_refused([](LocalOptions& o) { o.interval.most = 0; }, "max");
  expect_refused(
      [](LocalOptions& o) {
        o.interval.may_compress = true;
        o.codec = "int8";
      },
      "bits");
  // A training with another name is the same, so its checkpoint fits.
  LocalOptions named = local_options("4");
  named.name = "other";
  EXPECT_EQ(digest(named), digest(local_options("4")));
  named.name = "";
  EXPECT_EQ(check(named).code(), Code::kInvalidArgument);
  LocalOptions late = local_options("4");
  late.late_after = Duration(0);
  EXPECT_FALSE(check(late).ok());
  EXPECT_TRUE(check(local_updates::diloco_options()).ok());
}

TEST(LocalOptions, NameTheCodecsOfAllEncodings) {
  LocalOptions options = local_options("auto:compress=on");
  set_codec(options, local_updates::kLadder);
  EXPECT_TRUE(check(options).ok());
  EXPECT_EQ(codecs_of(options), (std::vector<std::string>{"int8", "twobit", "onebit"}));
  EXPECT_EQ(drain_encoding(options, 0), 0);
  EXPECT_EQ(drain_encoding(options, 1), 1);
  EXPECT_EQ(drain_encoding(options, 3), 1);
  set_codec(options, "fp16");
  EXPECT_TRUE(check(options).ok());
  EXPECT_EQ(codecs_of(options), (std::vector<std::string>{"fp16"}));
  EXPECT_TRUE(options.interval.guard.residuals);
  EXPECT_FALSE(local_options("4").interval.guard.residuals);
  EXPECT_TRUE(local_updates::local_options("diloco")->interval.guard.residuals);
  EXPECT_EQ(drain_encoding(options, 1), 0) << "a codec that the program has named";
  // Without a choice, `auto` is the policy for gradients.
  options = local_options("4");
  set_codec(options, local_updates::kLadder);
  EXPECT_EQ(codecs_of(options), (std::vector<std::string>{"auto"}));
  EXPECT_EQ(drain_encoding(options, 1), 0);
  EXPECT_TRUE(codecs_of(local_options("4")).empty());
}

// The numbers have exact sums and products.
TEST(LocalAnchor, GoesToTheMeanOrAStepTowardsIt) {
  const std::vector<float> start = {8, -4, 0};
  const std::vector<std::vector<float>> means = {{4, 0, 2}, {4, -4, 2}};
  const auto last = [&](const local_updates::OuterOptions& outer, bool of_differences) {
    local_updates::Anchor anchor(3, outer);
    anchor.reset(start);
    for (const std::vector<float>& mean : means) {
      const std::vector<float> before(anchor.values().begin(), anchor.values().end());
      std::vector<float> given = mean;
      for (std::size_t i = 0; of_differences && i < given.size(); ++i) {
        given[i] -= before[i];
      }
      double norm2 = 0;
      for (std::size_t i = 0; i < given.size(); ++i) {
        const double d = mean[i] - before[i];
        norm2 += d * d;
      }
      anchor.advance(given, of_differences, norm2);
      EXPECT_EQ(given, before) << "what the anchor was";
    }
    EXPECT_EQ(anchor.version(), 3U);
    return std::vector<float>(anchor.values().begin(), anchor.values().end());
  };
  for (const bool of_differences : {false, true}) {
    SCOPED_TRACE(of_differences);
    EXPECT_EQ(last({}, of_differences), means[1]);
    EXPECT_EQ(last({.on = true, .lr = 0.5}, of_differences), (std::vector<float>{5, -3, 1.5}));
    EXPECT_EQ(last({.on = true, .lr = 0.5, .momentum = 0.5}, of_differences), (std::vector<float>{4, -2, 2}));
    EXPECT_EQ(last({.on = true, .lr = 0.5, .momentum = 0.5, .nesterov = true}, of_differences),
              (std::vector<float>{3.75, -2.75, 2.125}));
  }
}

TEST(LocalAnchor, AssignsAMeanAndKeepsTheMomentum) {
  const local_updates::OuterOptions outer{.on = true, .lr = 0.5, .momentum = 0.5, .nesterov = true};
  local_updates::Anchor anchor(2, outer);
  std::vector<float> mean = {4, -4};
  anchor.advance(mean, true, 32);
  const std::vector<float> momentum(anchor.momentum().begin(), anchor.momentum().end());
  const std::vector<float> model = {1, 2};
  mean = model;
  anchor.assign(mean, false);
  EXPECT_TRUE(std::ranges::equal(anchor.values(), model));
  EXPECT_EQ(mean, (std::vector<float>{3, -3})) << "the previous values";
  mean = {2, -4};
  anchor.assign(mean, true);
  EXPECT_TRUE(std::ranges::equal(anchor.values(), std::vector<float>{3, -2}));
  EXPECT_EQ(mean, model);
  EXPECT_TRUE(std::ranges::equal(anchor.momentum(), momentum));
  EXPECT_EQ(anchor.version(), 3U);
  anchor.clear_momentum();
  EXPECT_TRUE(std::ranges::equal(anchor.momentum(), std::vector<float>{0, 0}));
}

// Means with a correlation of 1, 0 and -1 to the mean before.
TEST(LocalAnchor, MeasuresTheAutocorrelationOfMeans) {
  const auto rate_of = [](const local_updates::OuterOptions& outer, const std::array<float, 4>& turn) {
    local_updates::Anchor anchor(2, outer);
    std::array<float, 2> mean = {3, 4};
    for (int merge = 0; merge < 100; ++merge) {
      std::vector<float> given(mean.begin(), mean.end());
      anchor.advance(given, true, 25);
      mean = {turn[0] * mean[0] + turn[1] * mean[1], turn[2] * mean[0] + turn[3] * mean[1]};
    }
    return local_updates::outer_rate(outer, anchor.trace());
  };
  constexpr std::array<float, 4> kSame = {1, 0, 0, 1};
  constexpr std::array<float, 4> kBack = {-1, 0, 0, -1};
  const local_updates::OuterOptions nesterov{.on = true, .lr = 0.7, .momentum = 0.5, .nesterov = true};
  const local_updates::OuterOptions heavy{.on = true, .lr = 0.7, .momentum = 0.5};
  // The momentum of equal means goes to twice the mean.
  EXPECT_NEAR(rate_of(nesterov, kSame).autocorrelation.value(), 1, 1e-4);
  EXPECT_NEAR(rate_of(nesterov, kSame).rate, 0.7 * (1 + 0.5 / (1 - 0.5)), 1e-4);
  EXPECT_NEAR(rate_of(heavy, kSame).rate, 0.7 / (1 - 0.5), 1e-4);
  EXPECT_NEAR(rate_of(nesterov, kBack).autocorrelation.value(), -1, 1e-4);
  EXPECT_NEAR(rate_of(nesterov, kBack).rate, 0.7 * (1 + 0.5 / (1 + 0.5)), 1e-4);
  // Before two merges, and without momentum, nothing is known.
  EXPECT_FALSE(local_updates::outer_rate(nesterov, {}).autocorrelation.has_value());
  EXPECT_DOUBLE_EQ(local_updates::outer_rate(nesterov, {}).rate, 0.7 * 1.5);
  EXPECT_FALSE(rate_of({.on = true, .lr = 0.5}, kSame).autocorrelation.has_value());
  EXPECT_DOUBLE_EQ(rate_of({.on = true, .lr = 0.5}, kSame).rate, 0.5);
  EXPECT_DOUBLE_EQ(local_updates::outer_rate({}, {}).rate, 1);
  EXPECT_EQ(to_string(rate_of(nesterov, kBack)), "outer rate 0.93 at autocorrelation -1.00");
}

LocalTensor tensor_of(const std::string& name, std::vector<float>& values) {
  LocalTensor tensor;
  tensor.name = name;
  tensor.view = {
      reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size()), DType::kF32, {}};
  return tensor;
}

TEST(LocalModel, IsCutIntoFragmentsOfAboutTheSameSize) {
  for (const int wanted : {1, 2, 3, 5, 50}) {
    TrainingOptions options;
    options.sizes = {10, 0, 500, 20, 20, 300, 1, 600, 90};
    Training training(options, 0);
    const LocalModel model = training.model(wanted);
    EXPECT_LE(model.fragments.size(), static_cast<std::size_t>(wanted));
    EXPECT_GE(model.fragments.size(), std::min<std::size_t>(static_cast<std::size_t>(wanted), 3));
    int next = 0;
    for (const local_updates::FragmentLayout& fragment : model.fragments) {
      EXPECT_GT(fragment.numel, 0);
      std::int64_t at = 0;
      for (std::size_t i = 0; i < fragment.tensors.size(); ++i) {
        next += next == 1 ? 1 : 0;  // it is empty
        EXPECT_EQ(fragment.tensors[i], next++);
        EXPECT_EQ(fragment.offsets[i], at);
        at += options.sizes[static_cast<std::size_t>(fragment.tensors[i])];
      }
      EXPECT_EQ(fragment.numel, at);
    }
    EXPECT_EQ(next, 9);
  }
}

TEST(LocalModel, ReadsAndWritesWhereTheTensorsAre) {
  Training training({}, 0);
  const LocalModel model = training.model(2);
  const auto before = training.tensors;
  const std::uint64_t digest = model.digest();
  for (std::size_t p = 0; p < model.fragments.size(); ++p) {
    std::vector<float> values(static_cast<std::size_t>(model.fragments[p].numel));
    model.read(p, values);
    for (float& value : values) {
      value += 1;
    }
    model.write(p, values);
  }
  for (std::size_t t = 0; t < before.size(); ++t) {
    for (std::size_t i = 0; i < before[t].size(); ++i) {
      EXPECT_EQ(training.tensors[t][i], before[t][i] + 1);
    }
  }
  EXPECT_NE(model.digest(), digest);
  EXPECT_TRUE(model.all_finite());
  training.tensors[1][0] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(model.all_finite());
}

TEST(LocalModel, RefusesWhatItCannotTrain) {
  std::vector<float> a(4);
  std::vector<float> b(4);
  EXPECT_EQ(local_updates::lay_out({}, {}, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(local_updates::lay_out({tensor_of("a", a), tensor_of("a", b)}, {}, 1).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(local_updates::lay_out({tensor_of("a", a), tensor_of("b", a)}, {}, 1).status().code(),
            Code::kInvalidArgument);
  LocalTensor half = tensor_of("half", b);
  half.view.dtype = DType::kF16;
  const Status status = local_updates::lay_out({tensor_of("a", a), half}, {}, 1).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.blame().tensor, "half");
  const LocalBuffer alone{"var", half.view, BufferRule::kVariance, -1};
  EXPECT_FALSE(local_updates::lay_out({tensor_of("a", a)}, {alone}, 1));
}

TEST(LocalReports, CutOffReportsNameTheirRank) {
  const std::vector<std::byte> good = encode(local_updates::Vote{true, 12, 0.5});
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto votes =
        local_updates::decode_votes({good, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}});
    ASSERT_FALSE(votes);
    EXPECT_EQ(votes.status().blame().rank, 1);
  }
  local_updates::RoundReport report;
  report.round.step = 7;
  report.round.digest = 99;
  report.round.latency_us = 20;
  const auto rounds = local_updates::decode_rounds({encode(report), encode(report)});
  ASSERT_TRUE(rounds);
  EXPECT_EQ((*rounds)[1].step, 7);
  EXPECT_EQ((*rounds)[1].digest, 99U);
  EXPECT_EQ((*rounds)[1].latency_us, 20);
  local_updates::RoundReport other = report;
  other.decisions = 1;
  EXPECT_EQ(local_updates::decode_rounds({encode(report), encode(other)}).status().code(), Code::kMismatch);
}

TEST(LocalBuffers, PoolWhatRanksHaveSeen) {
  std::vector<double> mean = {0, 0};
  std::vector<double> variance = {0, 0};
  const auto view = [](std::vector<double>& values) {
    return TensorView{reinterpret_cast<std::byte*>(values.data()), 2, DType::kF64, {}};
  };
  std::vector<LocalBuffer> buffers(2);
  buffers[0] = {"mean", view(mean), BufferRule::kMean, -1};
  buffers[1] = {"var", view(variance), BufferRule::kVariance, 0};
  const auto report = [&](std::vector<double> mu, std::vector<double> var, std::int64_t share) {
    mean = std::move(mu);
    variance = std::move(var);
    buffers[0].view = view(mean);
    buffers[1].view = view(variance);
    return pack_buffers(buffers, share);
  };
  const local_updates::Reports reports = {report({1, 5}, {2, 1}, 3), report({5, 5}, {6, 1}, 1),
                                          report({NAN, 0}, {0, 0}, 100)};
  ASSERT_TRUE(pool_buffers(buffers, reports).ok());
  EXPECT_EQ(mean, (std::vector<double>{2, 5}));
  EXPECT_EQ(variance, (std::vector<double>{(3 * (2 + 1.0) + 6 + 25) / 4 - 4, 1}));
  const auto before = mean;
  EXPECT_FALSE(pool_buffers(buffers, {reports[0], {}}).ok());
  EXPECT_EQ(mean, before);
}

TEST(LocalRounds, AreMeasuredWithoutOutliers) {
  Training training({}, 0);
  local_updates::RoundMeter meter(training.model(2));
  EXPECT_EQ(meter.report(true, 0).step_us, 0);
  for (const int ms : {10, 10, 5000, 10}) {
    meter.step({.lr = 0.1, .loss = 2.0, .steps_left = 5, .stall = std::chrono::milliseconds(4)},
               std::chrono::milliseconds(ms));
  }
  const auto sync = meter.report(true, 0);
  EXPECT_EQ(sync.step_us, 6000);
  EXPECT_EQ(sync.stall_us, 4000);
  EXPECT_EQ(sync.steps_left, 5);
  EXPECT_EQ(sync.loss_after, 2.0);
  meter.next_round();
  meter.step({.lr = 0.1, .loss = 1.0}, std::nullopt);
  meter.merged(0, 300, 0);
  meter.merged(1, 700, 0);
  const auto local = meter.report(false, 0);
  EXPECT_EQ(local.loss_before, 2.0);
  EXPECT_LT(local.loss_after, 2.0);
  EXPECT_EQ(local.transfer_us, 1000);
  EXPECT_EQ(local.longest_us, 700);
  EXPECT_EQ(local.encoding, 0);
  const auto distant = meter.report(false, 250);
  EXPECT_EQ(distant.latency_us, 250);
  EXPECT_EQ(distant.transfer_us, 50 + 450) << "each fragment has its latency";
  EXPECT_EQ(distant.longest_us, 450);
  EXPECT_EQ(meter.report(false, 690).transfer_us, 300 / 16 + 700 / 16);
  meter.merged(0, 30, 2);
  meter.merged(1, 70, 2);
  const auto compressed = meter.report(false, 0);
  EXPECT_EQ(compressed.encoding, 2);
  EXPECT_EQ(compressed.transfer_us, 100);
  EXPECT_EQ(compressed.dense_us, 1000);
  local_updates::RoundMeter other(training.model(2));
  other.merged(0, 30, 2);
  other.merged(1, 70, 2);
  EXPECT_EQ(other.report(false, 0).dense_us, 0) << "nothing was sent without compression";
}

TEST(LocalRounds, WaitsForMergesAreOfTheStepsSinceTheLastReport) {
  Training training({}, 0);
  local_updates::RoundMeter meter(training.model(2));
  const auto step = [&meter] { meter.step({.lr = 0.1}, std::chrono::milliseconds(10)); };
  meter.waited(std::chrono::milliseconds(5));
  EXPECT_EQ(meter.report(false, 0).stall_us, 0) << "there is no step to divide it by";
  step();
  step();
  meter.waited(std::chrono::milliseconds(3));
  EXPECT_EQ(meter.report(false, 0).stall_us, 1500);
  step();
  meter.waited(std::chrono::milliseconds(1));
  meter.next_round();
  step();
  EXPECT_EQ(meter.report(false, 0).stall_us, 500) << "a report comes before the end of its round";
  step();
  EXPECT_EQ(meter.report(false, 0).stall_us, 0);
}

// 1 + 2/F copies where merges come later than their snapshots, 1 + 1/F where they do not.
TEST(LocalMemory, IsAFractionOfTheModel) {
  for (const int delay : {0, 1}) {
    SimExchanges net({.seed = 3, .size = 2});
    const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
      TrainingOptions options;
      options.sizes = {100, 100, 100, 100};
      Training training(options, exchange.rank());
      const auto updater =
          updater_of(local_options("4:delay=" + std::to_string(delay), 4), training.model(4), exchange);
      must(updater->start());
      for (int k = 0; k < 20; ++k) {
        training.step();
        must(updater->step({}));
      }
      const std::string stats = updater->stats_json();
      require(stats.find("\"anchor_bytes\":1600,") != std::string::npos, stats);
      const int scratch = delay == 0 ? 400 : 800;
      require(stats.find("\"scratch_bytes\":" + std::to_string(scratch) + "}") != std::string::npos, stats);
    });
    EXPECT_EQ(error, "");
  }
}

TEST(LocalMemory, GrowsByWhatIsNeeded) {
  local_updates::ScratchPool pool;
  pool.give_back(pool.take(100));
  pool.give_back(pool.take(101));
  EXPECT_EQ(pool.bytes(), 404);
  auto large = pool.take(50);
  auto other = pool.take(60);
  EXPECT_EQ(pool.bytes(), 404 + 240);
  pool.give_back(std::move(other));
  pool.give_back(std::move(large));
  EXPECT_EQ(pool.take(90).size(), 90U);
  EXPECT_EQ(pool.bytes(), 404 + 240);
}

TEST(LocalTimeouts, ARankThatNeverComesEndsIt) {
  SimExchanges net({.seed = 3, .size = 2});
  const std::string error = net.run([&](SimExchanges::RankExchange& exchange) {
    Training training({}, exchange.rank());
    const auto updater = updater_of(local_options("4:delay=1"), training.model(1), exchange);
    must(updater->start());
    for (int k = 0; k < 3; ++k) {
      must(updater->step({}));
    }
    if (exchange.rank() == 1) {
      return;
    }
    Status status;
    for (int k = 0; k < 3 && status.ok(); ++k) {
      status = updater->step({}).status();
    }
    require(status.code() == Code::kTimeout, status.to_string());
    require(updater->drain().status().code() == Code::kTimeout, "the error stays");
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace sirtaki::world
