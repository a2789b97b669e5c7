#include "scheduler/policies/importance.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "scheduler/policies/rate_probe.h"
#include "tests/unit/scheduler/policies/link_policy_test.h"

namespace sirtaki::scheduler {
namespace {

class ImportanceTest : public LinkPolicyTest {};

TEST_F(ImportanceTest, FindsTheRateOfTheLink) {
  make("importance:start=70%");
  EXPECT_TRUE(all_dense()) << "70 % are no shorter as positions and values";
  EXPECT_TRUE(profile(12'500'000)) << "less at once";
  EXPECT_GT(compressed(), 0);
  const auto keep = [&] { return now_[2].decision.params.at(params::kKeep); };
  const std::int64_t at_100 = keep();
  EXPECT_TRUE(profile(2'500'000));
  EXPECT_LT(keep(), at_100);
  int profiles = 0;
  while (!profile(12'500'000) && profiles < 20) {
    ++profiles;
  }
  EXPECT_LT(profiles, 4);
  EXPECT_EQ(keep(), at_100);
}

TEST_F(ImportanceTest, SendsLessAtOnceAlsoAfterAChangeBack) {
  make("importance");
  const auto keep = [&] { return now_[2].decision.params.at(params::kKeep); };
  profile(12'500'000);
  const std::int64_t at_100 = keep();
  ASSERT_TRUE(profile(2'500'000));
  while (keep() != at_100) {
    profile(12'500'000);
  }
  EXPECT_TRUE(profile(2'500'000)) << controller_->last_decision();
  EXPECT_LT(keep(), at_100);
}

// More is tried ever more rarely, for one profile each; otherwise the rate stays.
TEST_F(ImportanceTest, DoesNotOscillate) {
  for (const char* text : {"importance", "importance:link=aimd,start=5%"}) {
    make(text);
    int turns = 0;
    std::int64_t last = 0;
    int direction = 0;
    for (int i = 0; i < 125; ++i) {  // 1,000 steps
      profile(12'500'000);
      const Decision& d = now_[2].decision;
      const std::int64_t rate = d.format().compressed() ? d.params.at(params::kKeep) : 1000;
      const int moved = i < 2 ? 0 : rate > last ? 1 : rate < last ? -1 : 0;
      turns += moved != 0 && direction != 0 && moved != direction ? 1 : 0;
      direction = moved != 0 ? moved : direction;
      last = rate;
    }
    EXPECT_LE(turns, 2 * 5) << text << ": trials after 3, 8, 16, 32 and 64 profiles";
  }
}

// A transfer takes the skew of the ranks plus the time of the link, so with small payloads the link reads slow.
TEST_F(ImportanceTest, SeesALinkGetFasterBehindLateRanks) {
  make("importance:exposed=10%");
  auto& importance = dynamic_cast<Importance&>(*controller_);
  constexpr std::int64_t kApartUs = 15'000;
  const auto on_link = [&](std::int64_t bytes_per_second) {
    std::int64_t bytes = 0;
    for (const PlannedTensor& tensor : now_) {
      bytes += tensor.wire_bytes;
    }
    const std::int64_t time_us = bytes * 3 / 2 * 1'000'000 / bytes_per_second;
    profile_.bytes_per_second = bytes_per_second;
    const Prediction p = predict_tensors(now_, profile_, planner_);
    profile_.step_us = p.step_us + kApartUs;
    profile_.exposed_us = p.exposed_us + kApartUs;
    profile_.bytes_per_second = bytes_per_second * time_us / (time_us + kApartUs);
    consider();
  };
  for (int i = 0; i < 6; ++i) {
    on_link(12'500'000);
  }
  const std::int64_t at_100 = importance.rate();
  for (int i = 0; i < 20; ++i) {
    on_link(2'500'000);
  }
  const std::int64_t at_20 = importance.rate();
  EXPECT_LT(at_20 * 2, at_100);
  int profiles = 0;
  for (; importance.rate() * 5 < at_100 * 4 && profiles < 20; ++profiles) {
    on_link(12'500'000);
  }
  EXPECT_LE(profiles, 4) << at_20 << " to " << at_100 << ": " << importance.last_decision();
}

TEST_F(ImportanceTest, SendsNoLessWhereNoStepWaits) {
  make("importance:most=1%");
  auto& importance = dynamic_cast<Importance&>(*controller_);
  profile(12'500'000);
  profile(12'500'000);
  const std::int64_t rate = importance.rate();
  // The link reads slow, but steps are as they were.
  profile_.bytes_per_second = 2'500'000;
  EXPECT_FALSE(consider()) << controller_->last_decision();
  profile_.exposed_us += profile_.step_us;
  profile_.step_us *= 2;
  EXPECT_TRUE(consider()) << controller_->last_decision();
  EXPECT_LT(importance.rate(), rate);
}

// The first profiles at a lower rate still wait for queues that the previous rate filled.
TEST_F(ImportanceTest, LowersTheRateOnceForStepsThatWaited) {
  make("importance");
  auto& importance = dynamic_cast<Importance&>(*controller_);
  const auto read = [&](std::int64_t step_us, std::int64_t exposed_us, std::int64_t bytes_per_second) {
    profile_.step_us = step_us;
    profile_.exposed_us = exposed_us;
    profile_.bytes_per_second = bytes_per_second;
    return consider();
  };
  profile(60'000'000);
  for (int i = 0; i < 5; ++i) {
    profile(60'000'000);
  }
  ASSERT_TRUE(read(120'000, 60'000, 30'000'000));
  const std::int64_t lowered = importance.rate();
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(read(100'000, 40'000, 30'000'000)) << controller_->last_decision();
    EXPECT_EQ(importance.rate(), lowered);
  }
  EXPECT_TRUE(read(120'000, 60'000, 12'000'000)) << "again, as soon: " << controller_->last_decision();
  EXPECT_LT(importance.rate(), lowered) << controller_->last_decision();
}

class ImportanceTrialTest : public ImportanceTest {
 protected:
  // Until a higher rate than before_ is on trial; steps at that one took usual_us_.
  void await_trial() {
    make("importance");
    for (int i = 0; i < 12; ++i) {
      before_ = rate();
      profile(12'500'000);
      usual_us_ = profile_.step_us;
      if (rate() > before_) {
        ASSERT_NEAR(static_cast<double>(rate()), std::sqrt(2) * static_cast<double>(before_), 2);
        return;
      }
    }
    FAIL() << controller_->last_decision();
  }
  // A profile whose steps take so much longer than before the trial, though ranks may wait any time.
  bool longer(double part) {
    profile_.step_us = usual_us_ + static_cast<std::int64_t>(part * static_cast<double>(usual_us_));
    profile_.exposed_us = profile_.step_us / 2;
    return consider();
  }
  std::int64_t rate() const { return dynamic_cast<const Importance&>(*controller_).rate(); }

  std::int64_t before_ = 0;
  std::int64_t usual_us_ = 0;
};

TEST_F(ImportanceTrialTest, EndsWhereStepsTakeLongerThanItIsWorth) {
  await_trial();
  EXPECT_TRUE(longer(0.07)) << controller_->last_decision();
  EXPECT_EQ(rate(), before_);
}

TEST_F(ImportanceTrialTest, IsWorthAShortWait) {
  await_trial();
  const std::int64_t tried = rate();
  EXPECT_TRUE(longer(0.05)) << controller_->last_decision();
  EXPECT_GT(rate(), tried) << "what is worth it leads to the next trial";
  EXPECT_LT(rate(), tried * 3 / 2);
  EXPECT_TRUE(longer(0.10)) << "5 % more than the last one";
  const std::int64_t third = rate();
  EXPECT_GT(third, tried * 3 / 2) << controller_->last_decision();
  EXPECT_TRUE(longer(0.19));
  EXPECT_LT(rate(), third) << controller_->last_decision();
  EXPECT_GT(rate(), tried);
}

TEST_F(ImportanceTrialTest, IsFollowedByABolderOneWhereItCostsNothing) {
  await_trial();
  const std::int64_t tried = rate();
  longer(0);
  EXPECT_EQ(rate(), 2 * tried) << controller_->last_decision();
  longer(0.13);
  EXPECT_GT(rate(), 2 * tried) << "twice as much is worth more: " << controller_->last_decision();
  EXPECT_LT(rate(), 3 * tried);
}

// Ranks are late, but steps are not longer.
TEST_F(ImportanceTrialTest, NoWaitLowersTheRateWhereStepsTakeWhatTheyDid) {
  await_trial();
  longer(0.2);
  ASSERT_EQ(rate(), before_);
  profile_.bytes_per_second /= 4;
  for (int i = 0; i < 4; ++i) {
    longer(0);
    EXPECT_GE(rate(), before_) << controller_->last_decision();
  }
  longer(1);
  EXPECT_LT(rate(), before_) << controller_->last_decision();
}

int profiles_until_due(RateProbe& probe, std::int64_t bytes_per_second) {
  for (int n = 1; n < 1000; ++n) {
    if (probe.due(bytes_per_second)) {
      return n;
    }
  }
  return 1000;
}

TEST(RateProbe, SearchesForAWhileAfterTheLinkGotSlower) {
  RateProbe probe;
  probe.fell(100);
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kLeast);
  int profiles = RateProbe::kLeast;
  while (true) {
    probe.begin(7);
    probe.fail();
    const int wait = profiles_until_due(probe, 1'000'000);
    profiles += wait;
    if (profiles > RateProbe::kSearch) {
      EXPECT_EQ(wait, RateProbe::kShortest);
      break;
    }
    ASSERT_EQ(wait, RateProbe::kSearchEvery);
    if (profiles == RateProbe::kSearch / 2 + 2) {
      probe.changed();
      EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kSearchEvery) << "it goes on";
      profiles += RateProbe::kSearchEvery;
    }
  }
}

TEST(RateProbe, DoesNotSearchOnceTheRateIsWhatItWas) {
  RateProbe probe;
  probe.fell(100);
  probe.begin(74);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kLeast);
  probe.begin(75);
  probe.fail();
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), 2 * RateProbe::kShortest);
}

TEST(RateProbe, WaitsLongerAfterEachFailureUnlessTheLinkReadsFaster) {
  RateProbe probe;
  EXPECT_EQ(profiles_until_due(probe, 1'000'000), RateProbe::kLeast);
  for (const int wait : {8, 16, 32, 64, 64}) {
    probe.begin(7);
    EXPECT_TRUE(probe.on());
    EXPECT_EQ(probe.fail(), 7);
    EXPECT_FALSE(probe.on());
    EXPECT_EQ(profiles_until_due(probe, 1'000'000), wait);
  }
  probe.begin(7);
  probe.fail();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(probe.due(i % 2 == 0 ? 1'000'000 : 1'100'000));
  }
  EXPECT_TRUE(probe.due(1'250'000));
  probe.begin(7);
  probe.fail();
  for (int i = 1; i < RateProbe::kLeast; ++i) {
    EXPECT_FALSE(probe.due(8'000'000 << i)) << "of steps before";
  }
}

TEST_F(ImportanceTest, AimdGoesDownByItsFactorAndUpByItsStep) {
  make("importance:link=aimd,start=10%,min=0,exposed=10%");
  auto* importance = dynamic_cast<Importance*>(controller_.get());
  ASSERT_NE(importance, nullptr);
  const std::int64_t start = importance->rate();
  profile(1'000'000);
  EXPECT_EQ(importance->rate(), start * 62259 / 65536) << "all of it is exposed";
  const std::int64_t less = importance->rate();
  profile(1'000'000'000'000);
  EXPECT_EQ(importance->rate(), less + 66);
  profile_.latency_ns *= 2;
  profile(1'000'000'000'000);
  EXPECT_EQ(importance->rate(), (less + 66) * 62259 / 65536) << "delays grow";
}

TEST_F(ImportanceTest, LongerDelayNeverMeansAHigherRate) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    make("importance:start=50%");
    auto* importance = dynamic_cast<Importance*>(controller_.get());
    const auto rate = static_cast<std::int64_t>(1'000'000 + random() % 100'000'000);
    profile(rate);
    const std::int64_t before = importance->rate();
    profile_.latency_ns *= static_cast<std::int64_t>(2 + random() % 8);
    profile(rate / static_cast<std::int64_t>(1 + random() % 4));
    EXPECT_LE(importance->rate(), before) << importance->last_decision();
  }
}

TEST(Shares, FollowLossesAndKeepTheBudget) {
  EXPECT_TRUE(shares_by_loss({1'000'000, StepProfile::kUnknown}).empty()) << "a rank has no loss";
  EXPECT_TRUE(shares_by_loss({0, 0}).empty());
  EXPECT_EQ(shares_by_loss({500'000, 500'000, 500'000}), (std::vector<std::int64_t>(3, params::kOne)));
  // (8/4.5)^(2/3) over (1/4.5)^(2/3) is 4, but the smaller one counts as a quarter of the mean.
  const auto two = shares_by_loss({8'000'000, 1'000'000});
  EXPECT_NEAR(static_cast<double>(two[0]) / static_cast<double>(two[1]), std::pow(16.0 / 9.0 / 0.25, 2.0 / 3.0), 1e-3);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<std::int64_t> losses(1 + random() % 16);
    for (std::int64_t& loss : losses) {
      loss = static_cast<std::int64_t>(1'000 + random() % 5'000'000);
    }
    const auto ranks = static_cast<std::int64_t>(losses.size());
    const std::vector<std::int64_t> shares = shares_by_loss(losses);
    EXPECT_NEAR(static_cast<double>(std::reduce(shares.begin(), shares.end())),
                static_cast<double>(ranks * params::kOne), static_cast<double>(ranks));
    const auto keep = static_cast<std::int64_t>(4 + random() % 60);
    const std::vector<std::int64_t> keeps = split_keep(keep, 512, shares);
    EXPECT_EQ(std::reduce(keeps.begin(), keeps.end()), keep * ranks);
    for (std::size_t r = 0; r < losses.size(); ++r) {
      EXPECT_GE(keeps[r], 1);
      for (std::size_t other = 0; other < losses.size(); ++other) {
        EXPECT_TRUE(losses[r] < losses[other] || keeps[r] + 1 >= keeps[other]);
      }
    }
  }
  EXPECT_EQ(split_keep(400, 512, {2 * params::kOne, 0}), (std::vector<std::int64_t>{512, 1}));
}

TEST_F(ImportanceTest, SplitsTheRateOverTheRanksByTheirLosses) {
  make("importance:split=loss,most=0.7%");
  EXPECT_TRUE(controller_->wants_losses());
  profile_.losses.assign(4, StepProfile::kUnknown);
  profile(12'500'000);
  EXPECT_TRUE(now_[2].decision.keeps.empty()) << "no rank has a loss";
  profile_.losses = {3'000'000, 1'000'000, 1'000'000, 1'000'000};
  profile(12'500'000);
  EXPECT_TRUE(profile(12'500'000)) << controller_->last_decision();
  const Decision& split = now_[2].decision;
  ASSERT_EQ(split.keeps.size(), 4U) << now_[2].reason;
  // Payloads by gather are longer on the wire, so the rate is lower, too.
  const std::int64_t rate = dynamic_cast<Importance&>(*controller_).rate();
  EXPECT_EQ(std::reduce(split.keeps.begin(), split.keeps.end()), 4 * ((512 * rate + params::kOne / 2) / params::kOne));
  EXPECT_GT(split.keeps[0], split.keeps[1]);
  EXPECT_EQ(split.params.at(params::kKeep), split.keeps[0]) << "the largest payload";
  EXPECT_EQ(split.reduction, ReductionKind::kGather);
  EXPECT_EQ(split.params_of(1).at(params::kKeep), split.keeps[1]);
  EXPECT_FALSE(now_[1].decision.format().compressed());
  // A little more or less does not matter.
  profile_.losses = {3'100'000, 1'000'000, 1'050'000, 1'000'000};
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(profile(12'500'000)) << controller_->last_decision();
  }
}

TEST_F(ImportanceTest, KeepsTheWayWhereLossesAreAlike) {
  make("importance:split=loss,wire=scatter");
  profile_.losses.assign(4, 2'000'000);
  for (int i = 0; i < 4; ++i) {
    profile(12'500'000);
    EXPECT_TRUE(now_[2].decision.keeps.empty());
    EXPECT_NE(now_[2].decision.reduction, ReductionKind::kGather) << now_[2].reason;
  }
  EXPECT_TRUE(now_[2].decision.format().compressed());
}

}  // namespace
}  // namespace sirtaki::scheduler
