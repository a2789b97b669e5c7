#include "scheduler/policies/auto_policy.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/policies/link_policy_test.h"

namespace sirtaki::scheduler {
namespace {

class AutoPolicyTest : public LinkPolicyTest {};

TEST_F(AutoPolicyTest, StaysDenseOnAFastLink) {
  make("auto");
  EXPECT_TRUE(all_dense());
  for (int i = 0; i < 60; ++i) {
    EXPECT_FALSE(profile(10'000'000'000));
  }
  EXPECT_TRUE(all_dense());
  EXPECT_NE(controller_->last_decision().find("stays"), std::string::npos) << controller_->last_decision();
}

TEST_F(AutoPolicyTest, IsAtRestOnlyWhileNothingIsWanted) {
  make("auto");
  profile(10'000'000'000);
  EXPECT_TRUE(controller_->at_rest());
  EXPECT_FALSE(profile(50'000'000));
  EXPECT_FALSE(controller_->at_rest()) << "the next profile confirms a change";
  EXPECT_TRUE(profile(50'000'000));
  EXPECT_FALSE(controller_->at_rest()) << "the next profiles judge it";
  controller_->restart();
  EXPECT_FALSE(controller_->at_rest());
}

TEST_F(AutoPolicyTest, CompressesWhereStepsGetShorter) {
  make("auto");
  const std::int64_t dense = step_us(50'000'000);
  EXPECT_FALSE(profile(50'000'000)) << "not before it is confirmed";
  EXPECT_TRUE(profile(50'000'000));
  EXPECT_GT(compressed(), 0);
  EXPECT_LT(step_us(50'000'000) * 3, dense);
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    EXPECT_FALSE(now_[i].reason.empty());
    if (infos_[i].dims.size() < 2) {
      EXPECT_FALSE(now_[i].decision.format().compressed()) << now_[i].name;
    }
  }
  EXPECT_NE(controller_->last_decision().find("predicted"), std::string::npos);
}

// The costs of the levels were measured with every matrix at the level: none is spared.
TEST_F(AutoPolicyTest, TheFirstAndTheLastMatrixGoAsFarAsOthers) {
  for (const char* text : {"auto", "auto:sparse=off"}) {
    int levels = 0;
    for (std::int64_t rate = 400'000'000; rate > 500'000; rate = rate * 3 / 4) {
      make(text);
      profile(rate);
      profile(rate);
      if (now_[6].decision.codec == CodecId::kPowerSgd) {
        EXPECT_EQ(now_[0].decision.codec, CodecId::kPowerSgd) << text << " at " << rate;
        ++levels;
      }
    }
    EXPECT_GT(levels, 0) << text;
  }
}

TEST_F(AutoPolicyTest, AdamEndsAtFourBitsInSmallBlocks) {
  make("auto:optimizer=adam");
  profile(1'000'000);
  ASSERT_TRUE(profile(1'000'000));
  EXPECT_GT(compressed(), 0);
  for (const PlannedTensor& tensor : now_) {
    if (tensor.decision.format().compressed()) {
      EXPECT_EQ(tensor.decision.codec, CodecId::kInt4) << tensor.reason;
      EXPECT_EQ(tensor.decision.params.at(params::kBlock), 32) << tensor.reason;
    }
  }
}

TEST_F(AutoPolicyTest, CompressesNoMoreThanItNeeds) {
  make("auto");
  // Dense hides nearly all of it; a little less hides the rest.
  for (const std::int64_t rate : {250'000'000, 220'000'000, 200'000'000}) {
    controller_->restart();
    make("auto");
    profile(rate);
    profile(rate);
    if (compressed() > 0) {
      EXPECT_LT(compressed(), 8) << rate;
      EXPECT_TRUE(std::ranges::none_of(now_, [](const PlannedTensor& t) {
        return t.decision.format().compressed() && t.decision.codec != CodecId::kInt8;
      })) << rate;
    }
  }
}

// A slower link does not mean more bytes, but for a tensor that a further level leaves dense because it is ready early.
// No level is beyond the budget of the optimizer.
TEST_F(AutoPolicyTest, SendsLessOverSlowerLinksAndNoLessThanItsBudgetAllows) {
  using enum CodecId;
  struct Allowed {
    const char* text;
    std::int64_t least_rank;  // of a low-rank level
    bool sparse;
  };
  constexpr std::int64_t kNoRank = 1000;
  for (const Allowed& allowed :
       {Allowed{"auto", 8, false}, Allowed{"auto:sparse=off,loss_budget=0.07", 4, false},
        Allowed{"auto:optimizer=other", kNoRank, false}, Allowed{"auto:loss_budget=0.001", kNoRank, false},
        Allowed{"auto:loss_budget=0.07", 4, true}, Allowed{"auto:loss_budget=0.1", 2, true}}) {
    SCOPED_TRACE(allowed.text);
    std::int64_t least_bytes = std::int64_t{1} << 40;
    std::int64_t least_rank = kNoRank;
    for (std::int64_t rate = 400'000'000; rate > 500'000; rate = rate * 3 / 4) {
      make(allowed.text);
      profile(rate);
      profile(rate);
      std::int64_t bytes = 0;
      for (const PlannedTensor& tensor : now_) {
        const CodecId codec = tensor.decision.codec;
        EXPECT_TRUE(codec == kNone || codec == kInt8 || codec == kInt4 || codec == kPowerSgd ||
                    (codec == kThresholdSparse && allowed.sparse))
            << tensor.reason;
        least_rank = codec == kPowerSgd ? std::min(least_rank, tensor.decision.params.at(params::kRank)) : least_rank;
        bytes += tensor.wire_bytes_of(tensor.numel);
      }
      EXPECT_LE(bytes, least_bytes * 5 / 4) << rate << ": " << controller_->last_decision();
      least_bytes = std::min(least_bytes, bytes);
    }
    EXPECT_EQ(least_rank, allowed.least_rank);
  }
}

TEST_F(AutoPolicyTest, MaySpareOptimizersThatNeedAllElements) {
  make("auto:sparse=off,loss_budget=1");
  profile(1'000'000);
  EXPECT_TRUE(profile(1'000'000));
  EXPECT_GT(compressed(), 0);
  EXPECT_TRUE(std::ranges::none_of(now_, [](const PlannedTensor& t) {
    return t.decision.codec == CodecId::kThresholdSparse;
  })) << controller_->last_decision();
}

TEST_F(AutoPolicyTest, HasNoLevelBeyondItsLossBudget) {
  for (const char* text : {"auto:loss_budget=0", "auto:optimizer=adam", "auto:optimizer=adam,loss_budget=0.0015"}) {
    make(text);
    profile(1'000'000);
    EXPECT_TRUE(profile(1'000'000));
    EXPECT_TRUE(std::ranges::none_of(now_,
                                     [](const PlannedTensor& t) {
                                       return t.decision.codec == CodecId::kPowerSgd ||
                                              t.decision.codec == CodecId::kGroupTopk;
                                     }))
        << text << ": " << controller_->last_decision();
  }
}

// Before the first steps only the time of gradients is known. Their computation hides most of it.
TEST_F(AutoPolicyTest, LeavesALevelThatCostsMoreLossThanItSavesSteps) {
  constexpr std::int64_t kRate = 36'000'000;
  make("auto");
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = kRate;
  now_ = controller_->first(link, now_).value();
  ASSERT_EQ(now_[6].decision.codec, CodecId::kPowerSgd);
  int changes = 0;
  for (int i = 0; i < 60; ++i) {
    changes += profile(kRate) ? 1 : 0;
  }
  EXPECT_EQ(changes, 1) << "longer steps of a milder level prove nothing: " << controller_->last_decision();
  EXPECT_TRUE(std::ranges::none_of(now_, [](const PlannedTensor& t) { return t.decision.codec == CodecId::kPowerSgd; }))
      << controller_->last_decision();
}

// Low rank of small matrices saves a tenth of the bytes of four bits, and costs a training more steps than that saves.
TEST_F(ControllerTest, ALevelThatCostsLossHasToShortenSteps) {
  for (const std::int64_t size : {144, 512}) {
    SCOPED_TRACE(size);
    infos_.clear();
    profile_ = {};
    profile_.backward_us = 40'000;
    profile_.forward_us = 20'000;
    profile_.latency_ns = 100'000;
    profile_.bytes_per_second = 100'000;
    for (int i = 0; i < 8; ++i) {
      add("layer" + std::to_string(i) + ".weight", {size, size}, 37'500 - 5'000 * i);
    }
    make("auto");
    const auto first = controller_->first(profile_, now_);
    ASSERT_TRUE(first);
    const CodecId expected = size == 144 ? CodecId::kInt4 : CodecId::kPowerSgd;
    EXPECT_EQ(first->at(3).decision.codec, expected) << controller_->last_decision();
    now_ = *first;
    for (int i = 0; i < 3; ++i) {
      const Prediction p = predict_tensors(now_, profile_, planner_);
      profile_.step_us = p.step_us;
      profile_.exposed_us = p.exposed_us;
      consider();
    }
    EXPECT_EQ(now_[3].decision.codec, expected) << controller_->last_decision();
  }
}

TEST_F(AutoPolicyTest, BeginsWithTheLevelThatTheLinkNeeds) {
  StepProfile link;
  link.latency_ns = 100'000;
  for (const auto& [rate, dense] : {std::pair<std::int64_t, bool>{2'000'000'000, true}, {4'000'000, false}}) {
    make("auto");
    link.bytes_per_second = rate;
    const auto first = controller_->first(link, now_);
    ASSERT_EQ(first.has_value(), !dense) << rate;
    if (!first) {
      continue;
    }
    now_ = *first;
    EXPECT_GT(compressed(), 0);
    EXPECT_NE(now_[6].reason.find("on the measured link"), std::string::npos) << now_[6].reason;
    EXPECT_NE(controller_->last_decision().find("at first"), std::string::npos);
  }
}

TEST_F(AutoPolicyTest, NamesTheLimitThatFollowsFromItsSettings) {
  const auto limit_of = [&](const std::string& text) {
    make(text);
    return controller_->limit();
  };
  EXPECT_EQ(limit_of("auto"), "");
  EXPECT_EQ(limit_of("auto:optimizer=adam"), "");
  EXPECT_TRUE(controller_->begins_by_link());
  EXPECT_EQ(limit_of("auto:optimizer=other"),
            "auto goes no further than int8, because fewer bits are not known to cost this optimizer little loss; "
            "optimizer=adam or optimizer=sgd gives it the levels of these");
  EXPECT_EQ(limit_of("auto:optimizer=other,loss_budget=0.03").rfind("auto goes no further than int4, ", 0), 0U);
  EXPECT_TRUE(controller_->begins_by_link());
  EXPECT_EQ(limit_of("auto:optimizer=other,loss_budget=0"),
            "auto sends dense gradients, because no level of compression is within loss_budget; a larger budget allows "
            "some");
  EXPECT_FALSE(controller_->begins_by_link());
  EXPECT_EQ(limit_of("auto:min=2MiB"),
            "auto sends dense gradients, because no float32 tensor that auto decides has 2MiB and 2 dimensions; "
            "smaller values of the keys min and ndim allow more");
  EXPECT_FALSE(controller_->begins_by_link()) << "the link does not matter";
  EXPECT_EQ(limit_of("layer*.weight=>none;*=>auto"),
            "auto sends dense gradients, because no float32 tensor that auto decides has 16KiB and 2 dimensions; "
            "smaller values of the keys min and ndim allow more");
  for (TensorInfo& info : infos_) {
    info.dtype = DType::kBF16;
  }
  EXPECT_EQ(limit_of("auto"), "auto sends dense gradients, because no tensor that auto decides is float32");
  EXPECT_FALSE(controller_->begins_by_link());
  infos_[0].dtype = DType::kF32;
  EXPECT_EQ(limit_of("layer0.weight=>none;*=>auto"),
            "auto sends dense gradients, because no tensor that auto decides is float32");
  EXPECT_EQ(limit_of("auto"), "");
}

// A rank that has considered the last profile before a step was given up decides like one that has not.
TEST_F(AutoPolicyTest, ARestartForgetsProfilesThatNotAllRanksHaveConsidered) {
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = 4'000'000;
  std::vector<std::string> decisions[2];
  for (const bool one_more : {false, true}) {
    make("auto");
    const std::vector<PlannedTensor> first = controller_->first(link, now_).value();
    now_ = first;
    profile(4'000'000);
    if (one_more) {
      profile(80'000'000);
      profile(90'000'000);
    }
    controller_->restart();
    now_ = first;
    std::vector<std::int64_t> rates = {3'000'000, 4'000'000, 30'000'000, 30'000'000, 5'000'000, 5'000'000};
    rates.insert(rates.end(), 12, 90'000'000);
    for (const std::int64_t rate : rates) {
      profile(rate);
      decisions[one_more ? 1 : 0].push_back(controller_->last_decision());
    }
  }
  EXPECT_EQ(decisions[0], decisions[1]);
}

TEST_F(AutoPolicyTest, LeavesAFirstLevelThatTheLinkDoesNotNeed) {
  make("auto");
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = 4'000'000;
  now_ = controller_->first(link, now_).value();
  for (int i = 0; i < 7; ++i) {
    EXPECT_FALSE(profile(10'000'000'000)) << "may be bursts";
  }
  for (int i = 0; i < 5; ++i) {
    profile(10'000'000'000);
  }
  EXPECT_TRUE(all_dense()) << "the link was measured wrongly";
  controller_->restart();
  make("auto");
  now_ = controller_->first(link, now_).value();
  const int compressed_first = compressed();
  profile(4'000'000);
  EXPECT_EQ(compressed(), compressed_first) << "and a right one stays";
}

TEST_F(AutoPolicyTest, HandsItsSettingsToTheSparseCodec) {
  make("auto:loss_budget=0.07,momentum=0.9,nesterov=on,rate=0.1%");
  profile(1'000'000);
  ASSERT_TRUE(profile(1'000'000));
  const Decision& sparse = now_[6].decision;
  ASSERT_EQ(sparse.codec, CodecId::kThresholdSparse) << controller_->last_decision();
  EXPECT_NEAR(static_cast<double>(corrected_momentum(sparse.codec, sparse.params)), 0.9 * params::kOne, 1);
  EXPECT_EQ(sparse.params.at(params::kNesterov), 1);
  EXPECT_NEAR(static_cast<double>(sparse.params.at(params::kDensity)), 0.001 * params::kOne, 1);
}

TEST_F(AutoPolicyTest, FollowsTheLinkThereAndBack) {
  make("auto");
  profile(12'500'000);
  profile(12'500'000);
  const int slow = compressed();
  EXPECT_GT(slow, 0);
  for (int i = 0; i < 20; ++i) {
    profile(10'000'000'000);
  }
  EXPECT_TRUE(all_dense());
  for (int i = 0; i < 10; ++i) {
    profile(12'500'000);
  }
  EXPECT_EQ(compressed(), slow);
}

// Ranks that are late make a link read slower that carries little; steps do not get longer by that.
TEST_F(AutoPolicyTest, CompressesNoMoreBecauseLateRanksMakeTheLinkReadSlower) {
  make("auto");
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = 100'000'000;
  if (auto first = controller_->first(link, now_)) {
    now_ = std::move(*first);
  }
  profile(100'000'000, 120);
  profile_.step_us = step_us(100'000'000) * 12 / 10;
  profile_.bytes_per_second = 20'000'000;
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(consider()) << controller_->last_decision();
  }
  int changes = 0;
  for (int i = 0; i < 6; ++i) {
    changes += profile(5'000'000) ? 1 : 0;
  }
  EXPECT_GT(changes, 0) << "a link that makes steps longer counts";
}

TEST_F(AutoPolicyTest, DoesNotSwingOnANoisyLink) {
  struct Noise {
    std::int64_t spread;
    int profiles;
    int changes;
  };
  for (const Noise& noise : {Noise{1'000'000, 62, 2}, Noise{5'000'000, 200, 7}}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937_64 random(seed);
      make("auto");
      int changes = 0;
      for (int i = 0; i < noise.profiles; ++i) {
        const auto offset = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * noise.spread));
        changes += profile(25'000'000 - noise.spread + offset) ? 1 : 0;
      }
      EXPECT_LE(changes, noise.changes) << noise.spread;
    }
  }
}

TEST_F(AutoPolicyTest, TakesBackWhatMadeStepsLonger) {
  make("auto");
  profile(12'500'000);
  ASSERT_TRUE(profile(12'500'000));
  EXPECT_FALSE(profile(12'500'000, 3000)) << "once is noise";
  EXPECT_TRUE(profile(12'500'000, 3000));
  EXPECT_TRUE(all_dense());
  int until = 0;
  while (!profile(12'500'000) && until < 100) {
    ++until;
  }
  EXPECT_GE(until, 8) << "and stays away from it for a while";
  EXPECT_LT(until, 100);
}

TEST_F(AutoPolicyTest, TakesBackAMilderLevelThatMadeStepsLonger) {
  make("auto");
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = 12'500'000;
  now_ = controller_->first(link, now_).value();
  profile(12'500'000);
  const int compressed_before = compressed();
  const std::int64_t fitting_us = profile_.step_us;
  // Small payloads pass through the burst of a shaper, so the link reads fast, but the steps do not get shorter.
  const auto is_milder = [&] { return compressed() < compressed_before || all_dense(); };
  for (int i = 0; i < 20 && !is_milder(); ++i) {
    profile_.bytes_per_second = 10'000'000'000;
    profile_.step_us = fitting_us;
    consider();
  }
  ASSERT_TRUE(is_milder()) << controller_->last_decision();
  profile_.step_us = fitting_us * 11 / 10;
  EXPECT_FALSE(consider()) << "once is noise";
  profile_.step_us = 3 * fitting_us;
  EXPECT_TRUE(consider()) << controller_->last_decision();
  EXPECT_GE(compressed(), compressed_before);
}

// Long after a change to a milder level, a slower link is no sign that the change was wrong.
TEST_F(AutoPolicyTest, ASlowerLinkIsFollowedAtOnceAfterAMilderLevel) {
  make("auto");
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = 12'500'000;
  now_ = controller_->first(link, now_).value();
  for (int i = 0; i < 30; ++i) {
    profile(10'000'000'000);
  }
  ASSERT_TRUE(all_dense());
  for (int i = 0; i < 3; ++i) {
    profile(2'000'000);
  }
  EXPECT_EQ(now_[6].decision.codec, CodecId::kPowerSgd) << controller_->last_decision();
}

TEST_F(AutoPolicyTest, CodecsThatCostMoreThanTheySaveAreNotUsed) {
  make("auto");
  profile_.codec_costs.fill({2'000'000, 2'000'000});
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(profile(12'500'000)) << controller_->last_decision();
  }
}

TEST_F(AutoPolicyTest, OnlyTensorsOfItsRulesFollow) {
  make("layer3*=>auto;layer5.weight=>int8;*=>none");
  EXPECT_EQ(compressed(), 1);
  profile(1'000'000);
  EXPECT_TRUE(profile(1'000'000));
  EXPECT_EQ(compressed(), 2);
  EXPECT_TRUE(now_[6].decision.format().compressed());
  EXPECT_EQ(now_[10].decision.codec, CodecId::kInt8);
}

TEST_F(AutoPolicyTest, TheFirstLevelLeavesTensorsOfOtherRulesAsTheyAre) {
  make("layer3*=>auto;layer5.weight=>int8;*=>none");
  StepProfile link;
  link.latency_ns = 100'000;
  link.bytes_per_second = 100'000;
  now_ = controller_->first(link, now_).value();
  EXPECT_EQ(compressed(), 2);
  EXPECT_TRUE(now_[6].decision.format().compressed());
  EXPECT_EQ(now_[10].decision.codec, CodecId::kInt8);
}

}  // namespace
}  // namespace sirtaki::scheduler
