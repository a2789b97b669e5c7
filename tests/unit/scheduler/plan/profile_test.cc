#include "scheduler/plan/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>

namespace sirtaki::scheduler {
namespace {

StepProfile example() {
  StepProfile profile;
  profile.ready_us = {0, 500, 900};
  profile.need_us = {40, 20, 0};
  profile.backward_us = 1000;
  profile.forward_us = 600;
  profile.step_us = 1700;
  profile.exposed_us = 100;
  profile.latency_ns = 80'000;
  profile.bytes_per_second = 25'000'000;
  profile.codec_costs = {{{100, 200}, {0, 5}, {7000, 0}}};
  profile.objection = 1;
  return profile;
}

std::vector<std::int64_t> elementwise_max(std::vector<std::int64_t> a, const std::vector<std::int64_t>& b) {
  std::transform(a.begin(), a.end(), b.begin(), a.begin(), [](auto x, auto y) { return std::max(x, y); });
  return a;
}

TEST(Profile, ComesBackFromItsVector) {
  StepProfile profile = example();
  for (const bool link : {true, false}) {
    if (!link) {
      profile.latency_ns = profile.bytes_per_second = StepProfile::kUnknown;
      profile.need_us[1] = StepProfile::kUnknown;
    }
    const auto values = to_max_vector(profile);
    EXPECT_EQ(values.size(), max_vector_size(3));
    const auto back = from_max_vector(values, 3);
    ASSERT_TRUE(back) << back.status().to_string();
    EXPECT_EQ(*back, profile);
    EXPECT_EQ(back->knows_link(), link);
  }
}

TEST(Profile, EveryRankTellsItsOwnLoss) {
  StepProfile a = example();
  StepProfile b = example();
  a.losses = {2'300'000, StepProfile::kUnknown, StepProfile::kUnknown};
  b.losses = {StepProfile::kUnknown, 700'000, StepProfile::kUnknown};
  const auto values = elementwise_max(to_max_vector(a), to_max_vector(b));
  EXPECT_EQ(values.size(), max_vector_size(3, 3));
  const auto both = from_max_vector(values, 3, 3);
  ASSERT_TRUE(both) << both.status().to_string();
  EXPECT_EQ(both->losses, (std::vector<std::int64_t>{2'300'000, 700'000, StepProfile::kUnknown}));
  EXPECT_FALSE(from_max_vector(values, 3, 2));
}

TEST(Profile, MaxKeepsTheSlowestOfEverything) {
  const StepProfile a = example();
  StepProfile b = example();
  b.ready_us = {10, 400, 950};
  b.need_us = {30, 25, 0};
  b.backward_us = 1100;
  b.step_us = 1600;
  b.latency_ns = 90'000;
  b.bytes_per_second = 20'000'000;
  b.objection = 2;
  const auto both = from_max_vector(elementwise_max(to_max_vector(a), to_max_vector(b)), 3);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->ready_us, (std::vector<std::int64_t>{10, 500, 950}));
  EXPECT_EQ(both->need_us, (std::vector<std::int64_t>{30, 20, 0}));
  EXPECT_EQ(both->backward_us, 1100);
  EXPECT_EQ(both->step_us, 1700);
  EXPECT_EQ(both->latency_ns, 80'000);
  EXPECT_EQ(both->bytes_per_second, 20'000'000);
  EXPECT_EQ(both->objection, 2);
}

TEST(Profile, WhatOneRankDoesNotKnowTheOthersSay) {
  StepProfile a = example();
  a.latency_ns = a.bytes_per_second = StepProfile::kUnknown;
  a.need_us = {StepProfile::kUnknown, StepProfile::kUnknown, 7};
  StepProfile b = example();
  b.need_us = {StepProfile::kUnknown, 20, StepProfile::kUnknown};
  const auto both = from_max_vector(elementwise_max(to_max_vector(a), to_max_vector(b)), 3);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->need_us, (std::vector<std::int64_t>{StepProfile::kUnknown, 20, 7}));
  EXPECT_TRUE(both->knows_link());
}

TEST(Profile, BringsWildMeasurementsIntoRange) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();
  StepProfile wild;
  wild.ready_us = {kLow, kHigh, -1};
  wild.need_us = {kHigh, kLow};
  wild.backward_us = kHigh;
  wild.forward_us = kLow;
  wild.latency_ns = kHigh;
  wild.bytes_per_second = kHigh;
  const auto back = from_max_vector(to_max_vector(wild), 3);
  ASSERT_TRUE(back) << back.status().to_string();
  EXPECT_EQ(back->ready_us[0], 0);
  EXPECT_GT(back->ready_us[1], 1'000'000'000);
  EXPECT_EQ(back->need_us[2], StepProfile::kUnknown) << "a list that is too short";
  EXPECT_TRUE(back->knows_link());
}

TEST(Profile, RefusesVectorsThatNoRankWrites) {
  const auto good = to_max_vector(example());
  struct BadVector {
    Code code;
    std::function<void(std::vector<std::int64_t>&)> spoil;
  };
  const std::vector<BadVector> cases = {
      {Code::kCorrupt, [](auto& v) { v.pop_back(); }},
      {Code::kCorrupt, [](auto& v) { v.push_back(0); }},
      {Code::kCorrupt, [](auto& v) { v.clear(); }},
      {Code::kMismatch, [](auto& v) { v[0] += 1; }},
      {Code::kMismatch, [](auto& v) { v[1] += 1; }},
      {Code::kMismatch, [](auto& v) { v[2] = 4; }},
      {Code::kCorrupt, [](auto& v) { v[4] = -1; }},
      {Code::kCorrupt, [](auto& v) { v[9] = 0; }},
      {Code::kCorrupt, [](auto& v) { v[10] = 256; }},
      {Code::kCorrupt, [](auto& v) { v.back() = 1; }},
      {Code::kCorrupt, [](auto& v) { v.back() = std::numeric_limits<std::int64_t>::min() + 1; }},
      {Code::kCorrupt, [](auto& v) { v[v.size() - 4] = std::numeric_limits<std::int64_t>::max(); }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    auto values = good;
    cases[i].spoil(values);
    const auto profile = from_max_vector(values, 3);
    ASSERT_FALSE(profile) << "case " << i;
    EXPECT_EQ(profile.status().code(), cases[i].code) << "case " << i << ": " << profile.status().to_string();
  }
}

TEST(Profile, RandomVectorsNeverGiveValuesOutOfRange) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto values = to_max_vector(example());
    for (int i = 0; i < 3; ++i) {
      values[random() % values.size()] = static_cast<std::int64_t>(random() >> random() % 64);
    }
    const auto profile = from_max_vector(values, 3);
    if (!profile) {
      continue;
    }
    for (const std::int64_t us : profile->ready_us) {
      EXPECT_TRUE(us >= 0 && us <= std::int64_t{1} << 40);
    }
    EXPECT_EQ(to_max_vector(*profile), values);
  }
}

TEST(Profile, DigestChangesWithEveryValue) {
  const StepProfile profile = example();
  std::vector<StepProfile> changed(9, profile);
  changed[0].ready_us[2] += 1;
  changed[1].need_us[0] = StepProfile::kUnknown;
  changed[2].backward_us += 1;
  changed[3].forward_us += 1;
  changed[4].step_us += 1;
  changed[5].exposed_us += 1;
  changed[6].latency_ns += 1;
  changed[7].bytes_per_second += 1;
  changed[8].objection += 1;
  std::vector<std::uint64_t> digests = {digest(profile)};
  for (const StepProfile& other : changed) {
    digests.push_back(digest(other));
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
  EXPECT_EQ(digest(profile), digest(example()));
}

}  // namespace
}  // namespace sirtaki::scheduler
