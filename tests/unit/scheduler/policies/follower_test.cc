#include "scheduler/policies/follower.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/policies/codec_controller_test.h"

namespace sirtaki::scheduler {
namespace {

// Six layers of 1 MiB in a backward pass of 40 ms, the last layer first.
class FollowerTest : public ControllerTest {
 protected:
  FollowerTest() {
    for (int i = 0; i < 6; ++i) {
      add("layer" + std::to_string(i) + ".weight", {512, 512}, 36'000 - 6'000 * i);
    }
    profile_.step_us = 100'000;
  }

  bool profile(std::int64_t latency_ns, std::int64_t bytes_per_second) {
    profile_.latency_ns = latency_ns;
    profile_.bytes_per_second = bytes_per_second;
    return consider();
  }

  bool all_by(ReductionKind reduction) const {
    return std::ranges::all_of(now_, [&](const PlannedTensor& t) { return t.decision.reduction == reduction; });
  }
};

TEST_F(FollowerTest, TheReductionFollowsTheLink) {
  make("group_topk");
  EXPECT_TRUE(all_by(ReductionKind::kGather)) << "four ranks, nothing measured";
  // 15 KB of payload; 100 Mbit/s and 0.1 ms have 1.25 KB in transit.
  EXPECT_FALSE(profile(100'000, 12'500'000)) << "once is noise";
  EXPECT_NE(controller_->last_decision().find("to be confirmed"), std::string::npos) << controller_->last_decision();
  EXPECT_TRUE(profile(100'000, 12'500'000));
  EXPECT_TRUE(all_by(ReductionKind::kScatter));
  for (const char* part : {"layer0.weight", "gather", "scatter", "12500 kB/s and 100 us", "5 more"}) {
    EXPECT_NE(controller_->last_decision().find(part), std::string::npos) << controller_->last_decision();
  }
  EXPECT_NE(now_[0].reason.find("scatter, link 12500 kB/s"), std::string::npos) << now_[0].reason;
  EXPECT_FALSE(profile(100'000, 12'500'000));
  // A long fat link: 125 KB in transit.
  EXPECT_FALSE(profile(1'000'000, 125'000'000));
  EXPECT_TRUE(profile(1'000'000, 125'000'000));
  EXPECT_TRUE(all_by(ReductionKind::kGather));
}

TEST_F(FollowerTest, StaysWhereTheFormulaIsNotSure) {
  make("group_topk");
  // A gather up to 2/3 a B: at the border, and some to either side.
  const std::int64_t border = 15'360 * 10'000 * 3 / 2;
  for (const std::int64_t percent : {85, 95, 105, 120}) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_FALSE(profile(100'000, border * percent / 100)) << percent;
    }
  }
  profile(100'000, border / 2);
  EXPECT_TRUE(profile(100'000, border / 2));
}

TEST_F(FollowerTest, ANoisyLinkDoesNotMakeItSwing) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    make("group_topk");
    int changes = 0;
    for (int i = 0; i < 200; ++i) {
      changes += profile(100'000, static_cast<std::int64_t>(30'000'000 + random() % 120'000'000)) ? 1 : 0;
    }
    EXPECT_LE(changes, 6);
  }
}

TEST_F(FollowerTest, WhatIsAskedForByNameStays) {
  for (const char* text : {"group_topk:wire=gather", "none", "fp16", "kernel_sparse:wire=gather", "block_topk",
                           "powersgd", "int8:min=2MiB", "algc:most=1%", "algc:momentum=0.9", "*=>none"}) {
    EXPECT_EQ(controller(text), nullptr) << text;
  }
  make("layer3*=>twobit:wire=gather;layer4*=>group_topk;*=>none");
  profile(100'000, 12'500'000);
  EXPECT_TRUE(profile(100'000, 12'500'000));
  EXPECT_EQ(now_[3].decision.reduction, ReductionKind::kGather);
  EXPECT_EQ(now_[4].decision.reduction, ReductionKind::kScatter);
  EXPECT_FALSE(now_[0].decision.format().compressed());
}

TEST_F(FollowerTest, AlgcSendsAsMuchAsBackwardHides) {
  make("algc");
  const auto density = [&](std::size_t i) { return now_[i].decision.params.at(params::kDensity); };
  const std::int64_t least = density(0);
  // 125 MB/s for 6 ms between two layers: 750 KB of them, 25 % and more of a layer would be 1.3 MB.
  profile(100'000, 125'000'000);
  EXPECT_TRUE(profile(100'000, 125'000'000)) << controller_->last_decision();
  std::int64_t taken_us = 0;
  for (std::size_t i = 0; i < now_.size(); ++i) {  // from the last to be ready
    EXPECT_GE(density(i), least);
    EXPECT_LE(density(i), params::kOne / 4);
    taken_us += now_[i].wire_bytes * 6 / 4 / 125;
    EXPECT_LE(taken_us, 40'000 - profile_.ready_us[i] + 1) << "layer " << i << " is late";
  }
  EXPECT_GT(density(5), 5 * least);
  // Nothing fits: the least, not less.
  profile(100'000, 250'000);
  EXPECT_TRUE(profile(100'000, 250'000));
  for (std::size_t i = 0; i < now_.size(); ++i) {
    EXPECT_EQ(density(i), least);
  }
}

TEST_F(FollowerTest, AlgcLeavesAloneWhatALinkCarriesForNothing) {
  infos_[2].dims = {70, 70};
  make("algc");
  EXPECT_TRUE(now_[2].decision.format().compressed());
  profile(1'000'000, 125'000'000);
  EXPECT_TRUE(profile(1'000'000, 125'000'000)) << controller_->last_decision();
  EXPECT_FALSE(now_[2].decision.format().compressed()) << now_[2].reason;
}

TEST_F(FollowerTest, ForgetsAfterARestart) {
  make("group_topk");
  profile(100'000, 12'500'000);
  controller_->restart();
  EXPECT_TRUE(controller_->last_decision().empty());
  EXPECT_FALSE(profile(100'000, 12'500'000)) << "the profile before does not count";
}

}  // namespace
}  // namespace sirtaki::scheduler
