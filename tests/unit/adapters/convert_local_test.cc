#include "adapters/c/convert_local.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/local_updates/controller/spec.h"

namespace sirtaki::adapters {
namespace {

using local_updates::Interval;
using local_updates::Mode;
using local_updates::PolicyId;

class ConvertLocalTest : public testing::Test {
 protected:
  ConvertLocalTest() {
    args_.struct_size = sizeof(args_);
    args_.name = "training";
    args_.interval = "4";
    args_.count = 2;
    args_.names = names_.data();
    args_.tensors = tensors_.data();
    args_.buffer_count = 2;
    args_.buffer_names = buffer_names_.data();
    args_.buffers = buffers_.data();
    args_.buffer_rules = rules_.data();
    args_.buffer_means = means_.data();
    args_.outer = SIRTAKI_OUTER_PRESET;
  }

  static sirtaki_tensor tensor(float* data) {
    sirtaki_tensor out{};
    out.struct_size = sizeof(out);
    out.data = data;
    out.dtype = SIRTAKI_F32;
    out.ndim = 1;
    out.dims = &kLength;
    return out;
  }

  void expect_refused(const std::string& word) const {
    auto options = to_local_options(args_);
    const Status status = options ? to_local_model(args_).status() : options.status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.text().find(word), std::string_view::npos) << status.to_string();
  }

  static constexpr std::int64_t kLength = 3;
  std::array<std::array<float, kLength>, 4> memory_{};
  std::array<const char*, 2> names_{"a", "b"};
  std::array<sirtaki_tensor, 2> tensors_{tensor(memory_[0].data()), tensor(memory_[1].data())};
  std::array<const char*, 2> buffer_names_{"mean", "variance"};
  std::array<sirtaki_tensor, 2> buffers_{tensor(memory_[2].data()), tensor(memory_[3].data())};
  std::array<std::int32_t, 2> rules_{SIRTAKI_BUFFER_MEAN, SIRTAKI_BUFFER_VARIANCE};
  std::array<std::int32_t, 2> means_{-1, 0};
  sirtaki_local_args args_{};
};

TEST_F(ConvertLocalTest, TakesOptionsAndModel) {
  args_.fragments = 2;
  args_.merge = SIRTAKI_MERGE_OVERWRITE;
  args_.codec = "int8";
  const std::array<std::int32_t, 2> ranks = {1, 3};
  args_.ranks = ranks.data();
  args_.ranks_count = 2;
  const auto options = to_local_options(args_);
  ASSERT_TRUE(options) << options.status().to_string();
  EXPECT_EQ(options->name, "training");
  EXPECT_EQ(options->ranks, (std::vector<Rank>{1, 3}));
  EXPECT_EQ(options->interval.policy, PolicyId::kFixed);
  EXPECT_EQ(options->interval.base, 4);
  EXPECT_EQ(options->merge, local_updates::MergeRule::kOverwrite);
  EXPECT_TRUE(options->outer.nesterov);
  EXPECT_EQ(options->outer.lr, 0.7);
  EXPECT_EQ(options->outer.momentum, 0.5);
  EXPECT_EQ(options->codec, "int8");
  const auto model = to_local_model(args_);
  ASSERT_TRUE(model) << model.status().to_string();
  ASSERT_EQ(model->tensors.size(), 2U);
  EXPECT_EQ(model->tensors[1].data(), memory_[1].data());
  EXPECT_EQ(model->fragments.size(), 2U);
  ASSERT_EQ(model->buffers.size(), 2U);
  EXPECT_EQ(model->buffers[1].mean, 0);
}

TEST_F(ConvertLocalTest, PresetsBringTheirOuterOptimizerAndCodec) {
  args_.interval = "diloco";
  EXPECT_TRUE(to_local_options(args_)->outer.nesterov);
  EXPECT_EQ(to_local_options(args_)->outer.momentum, 0.9);
  EXPECT_EQ(to_local_options(args_)->codec, "int8");
  args_.outer = SIRTAKI_OUTER_MOMENTUM;
  args_.outer_lr = 0.5;
  args_.outer_momentum = 0.25;
  args_.codec = "";
  const auto options = to_local_options(args_);
  EXPECT_FALSE(options->outer.nesterov);
  EXPECT_EQ(options->outer.lr, 0.5);
  EXPECT_EQ(options->outer.momentum, 0.25);
  EXPECT_EQ(options->codec, "");
  args_.outer = SIRTAKI_OUTER_NONE;
  EXPECT_FALSE(to_local_options(args_)->outer.on);
}

TEST_F(ConvertLocalTest, BitsAreChosenByTheIntervalOrByOneCodec) {
  args_.interval = "auto:compress=on";
  EXPECT_EQ(codecs_of(*to_local_options(args_)).size(), 3U);
  args_.codec = "auto";
  EXPECT_EQ(codecs_of(*to_local_options(args_)).size(), 3U);
  args_.codec = "fp16";
  EXPECT_EQ(codecs_of(*to_local_options(args_)).size(), 1U);
  args_.interval = "auto";
  args_.codec = nullptr;
  EXPECT_EQ(codecs_of(*to_local_options(args_)).size(), 0U);
}

TEST_F(ConvertLocalTest, FunctionGetsWhatRanksMeasured) {
  std::string told;
  args_.interval = "callable";
  expect_refused("function");
  args_.steps = [](void* context, const char* round) {
    *static_cast<std::string*>(context) = round;
    return std::int64_t{7};
  };
  args_.context = &told;
  const auto options = to_local_options(args_);
  ASSERT_TRUE(options) << options.status().to_string();
  EXPECT_EQ(options->outer.momentum, 0.5);
  local_updates::RoundStats stats;
  stats.step = 12;
  stats.lr_pico = 50'000'000'000;
  EXPECT_EQ(options->interval.hook(stats, Interval{.steps = 4, .mode = Mode::kLocal}), 7);
  EXPECT_NE(told.find("\"step\":12"), std::string::npos) << told;
  EXPECT_NE(told.find("\"lr\":0.05"), std::string::npos) << told;
  EXPECT_NE(told.find("\"loss\":null"), std::string::npos) << told;
  EXPECT_NE(told.find("\"interval\":4"), std::string::npos) << told;
}

TEST_F(ConvertLocalTest, BadArgumentsAreRefusedWithTheField) {
  const sirtaki_local_args good = args_;
  const auto refused = [&](const std::string& word) {
    expect_refused(word);
    args_ = good;
  };
  args_.struct_size = 8;
  refused("struct_size");
  args_.name = "";
  refused("name");
  args_.interval = nullptr;
  refused("interval");
  args_.interval = "qrs";
  refused("qsr");
  args_.merge = 2;
  refused("merge");
  args_.outer = 9;
  refused("outer");
  args_.outer = SIRTAKI_OUTER_NESTEROV;
  args_.outer_lr = 1;
  refused("momentum");
  args_.codec = "gzip";
  refused("gzip");
  args_.tensors = nullptr;
  refused("count");
  args_.buffer_rules = nullptr;
  refused("buffer_count");
  rules_[0] = 5;
  refused("rule 5");
  rules_[0] = SIRTAKI_BUFFER_MEAN;
  names_[1] = nullptr;
  refused("names[1]");
}

TEST_F(ConvertLocalTest, StepsAndOutcomes) {
  sirtaki_local_step_args args{};
  args.struct_size = sizeof(args);
  args.lr = 0.1;
  args.share = 1;
  args.steps_left = -1;
  args.loss = 2;
  auto step = to_local_step(args);
  ASSERT_TRUE(step) << step.status().to_string();
  EXPECT_FALSE(step->loss);
  args.has_loss = 1;
  EXPECT_EQ(to_local_step(args)->loss, 2.0);
  args.share = -1;
  EXPECT_EQ(to_local_step(args).status().code(), Code::kInvalidArgument);

  sirtaki_local_outcome out{};
  EXPECT_FALSE(from_outcome({}, {}, &out).ok());
  EXPECT_TRUE(from_outcome({}, {}, nullptr).ok());
  out.struct_size = sizeof(out);
  local_updates::LocalOutcome outcome;
  outcome.reset_optimizer = outcome.equalize_optimizer = true;
  outcome.donor = 3;
  ASSERT_TRUE(from_outcome(outcome, {.averages_gradients = false, .steps = 6, .delay = 2}, &out).ok());
  EXPECT_EQ(out.average_gradients, 0);
  EXPECT_EQ(out.reset_optimizer, 1);
  EXPECT_EQ(out.equalize_optimizer, 1);
  EXPECT_EQ(out.donor, 3);
  EXPECT_EQ(out.steps, 6);
  EXPECT_EQ(out.delay, 2);
}

}  // namespace
}  // namespace sirtaki::adapters
