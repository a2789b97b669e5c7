#include "runtime/engine/stream/residual_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "compression/codec_state.h"
#include "runtime/engine/reduction/wire_size.h"
#include "runtime/net/link/hosts.h"

namespace sirtaki::engine {
namespace {

constexpr std::int64_t kNumel = 4096;

StreamTensor tensor_of() {
  StreamTensor tensor;
  tensor.name = "w";
  tensor.dims = {64, 64};
  return tensor;
}

scheduler::PlannedTensor twobit_by(ReductionKind reduction) {
  const StreamTensor tensor = tensor_of();
  return planned_tensor({tensor.name, tensor.dims, tensor.dtype}, {CodecId::kTwobit, reduction, {1, params::kOne, 0}},
                        3)
      .value();
}

// The residual of an owner of stripes must not stay behind when the reduction changes to one without owners.
TEST(ResidualStore, ResidualsOfOwnersGoToRanksWhenTheReductionChanges) {
  ResidualStore store({tensor_of()}, 0, 3);
  std::vector<float> gradient(static_cast<std::size_t>(kNumel), 0.0F);
  TensorView view;
  view.data = std::as_writable_bytes(std::span(gradient)).data();
  view.numel = kNumel;
  store.admit(0, twobit_by(ReductionKind::kScatter), view, 1.0, 0);
  const std::vector<float> sums(static_cast<std::size_t>(kNumel), 3.0F);
  const kernels::Feedback owner = store.of(0).owner_feedback(std::as_bytes(std::span(sums)).data(), 0);
  std::memcpy(owner.left, sums.data(), sizeof(float));
  ASSERT_TRUE(store.has_residual(0));

  store.admit(0, twobit_by(ReductionKind::kGather), view, 1.0, 0);
  const kernels::Feedback own = store.of(0).feedback(std::as_bytes(std::span(gradient)).data(), 0);
  float residual = 0;
  std::memcpy(&residual, own.residual, sizeof(residual));
  EXPECT_EQ(residual, 3.0F);
  EXPECT_EQ(store.residual_norm(0), 3.0);
}

TEST(ResidualStore, ClearsResidualsOfRanksAndOfOwners) {
  ResidualStore store({tensor_of(), tensor_of()}, 0, 3);
  std::vector<float> gradient(static_cast<std::size_t>(kNumel), 0.0F);
  TensorView view;
  view.data = std::as_writable_bytes(std::span(gradient)).data();
  view.numel = kNumel;
  store.admit(0, twobit_by(ReductionKind::kScatter), view, 1.0, 0);
  const std::vector<float> residuals(gradient.size(), 3.0F);
  const ConstBytes bytes = std::as_bytes(std::span(residuals));
  std::memcpy(store.of(0).owner_feedback(bytes.data(), 0).left, residuals.data(), sizeof(float));
  std::memcpy(store.of(0).feedback(bytes.data(), 0).left, residuals.data(), sizeof(float));
  store.load_residual(1, bytes.data());
  ASSERT_EQ(store.residual_norm(0), 6.0);
  for (const int index : {0, 1}) {
    store.clear_residual(index);
    EXPECT_FALSE(store.has_residual(index));
    EXPECT_EQ(store.residual_norm(index), 0.0);
  }
  float left = -1;
  std::memcpy(&left, store.of(0).owner_feedback(bytes.data(), 0).residual, sizeof(left));
  EXPECT_EQ(left, 0.0F);
}

// Two hosts of two ranks; this rank is the second of the first host.
net::HostGroups second_of_two() {
  return {.hosts = net::Hosts({{0, 1}, {2, 3}}), .host = 0, .here = nullptr, .own = {{1, nullptr}}};
}

class ByHosts : public testing::TestWithParam<ReductionKind> {
 protected:
  // 8 stripes of tensor number 1: rounds of two, which go to share 1 first.
  scheduler::PlannedTensor planned() const {
    scheduler::PlannedTensor made = twobit_by(GetParam());
    made.stripe = kNumel / 8;
    return made;
  }
  bool own(std::size_t i) const { return i / (kNumel / 4) % 2 == 0; }

  const net::HostGroups groups_ = second_of_two();
  ResidualStore store_{{tensor_of(), tensor_of()}, 1, 4, &groups_};
};

// A checkpoint holds residuals of all elements; this rank encodes its own shares only.
TEST_P(ByHosts, WhatOthersEncodeGoesToThemWithTheGradient) {
  std::vector<float> gradient(static_cast<std::size_t>(kNumel), 1.0F);
  TensorView view;
  view.data = std::as_writable_bytes(std::span(gradient)).data();
  view.numel = kNumel;
  const std::vector<float> residuals(gradient.size(), 4.0F);
  store_.load_residual(1, std::as_bytes(std::span(residuals)).data());
  store_.admit(1, planned(), view, 1.0, 0);
  std::vector<float> residual(gradient.size());
  store_.residual(1, std::as_writable_bytes(std::span(residual)).data());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    ASSERT_EQ(gradient[i], own(i) ? 1.0F : 5.0F) << i;
    ASSERT_EQ(residual[i], own(i) ? 4.0F : 0.0F) << i;
  }
}

TEST_P(ByHosts, NobodySeesTheSumAsAWhole) {
  std::vector<float> gradient(static_cast<std::size_t>(kNumel), std::numeric_limits<float>::quiet_NaN());
  TensorView view;
  view.data = std::as_writable_bytes(std::span(gradient)).data();
  view.numel = kNumel;
  store_.admit(1, planned(), view, 1.0, 0);
  store_.begin(1, view);
  ASSERT_TRUE(store_.of(1).coder().wants_whole());
  EXPECT_TRUE(store_.finite(1));  // nothing was checked
}

INSTANTIATE_TEST_SUITE_P(All, ByHosts,
                         testing::Values(ReductionKind::kGather, ReductionKind::kScatter, ReductionKind::kCounts),
                         [](const auto& reduction) { return std::string(reduction_name(reduction.param)); });

constexpr std::int64_t kCorrected = 64;
constexpr std::int64_t kHalf = params::kOne / 2;
constexpr auto kF32 = static_cast<std::int64_t>(DType::kF32);

// A tensor of one rank, and SGD with a momentum of 0.5.
class World {
 public:
  explicit World(double prescale = 1.0)
      : store_({{"w", {kCorrected}, {}, DType::kF32, {}}}, 0, 1), prescale_(prescale) {}

  ResidualStore& store() { return store_; }

  scheduler::PlannedTensor dense() const { return planned({}); }
  scheduler::PlannedTensor sparse(std::int64_t keep) const {
    return planned({CodecId::kGroupTopk, ReductionKind::kGather, {1, 16, keep, kF32, kHalf, 0}});
  }

  // Sends this gradient in a step, and applies the payload by SGD.
  void step(const scheduler::PlannedTensor& how, float gradient) {
    std::vector<float> data(kCorrected);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = gradient * static_cast<float>(1 + i % 16);
      given_[i] += static_cast<double>(data[i]) * prescale_;
    }
    std::byte* const bytes = std::as_writable_bytes(std::span(data)).data();
    store_.admit(0, how, {bytes, kCorrected, DType::kF32, {}}, prescale_, step_++);
    const bool steps = how.decision.format().compressed();
    if (steps) {
      compression::CodecState& one = store_.of(0);
      std::vector<std::byte> payload(one.coder().payload_bytes(kCorrected));
      one.coder().encode({0, kCorrected}, one.feedback(bytes, 0), payload);
      const std::byte* const only = payload.data();
      one.coder().sum({0, kCorrected}, {&only, 1}, bytes);
    }
    for (std::size_t i = 0; i < data.size(); ++i) {
      const double arrived = static_cast<double>(data[i]) * (steps ? 1.0 : prescale_);
      buffer_[i] = 0.5 * buffer_[i] + (steps ? 0.0 : arrived);
      applied_[i] += buffer_[i] + (steps ? arrived : 0.0);
    }
  }

  // The smallest and the largest change of an element of the model, relative to plain SGD, in which each gradient
  // counts 1 / (1 - 0.5) times.
  double least_part() const { return extreme(false); }
  double largest_part() const { return extreme(true); }

 private:
  scheduler::PlannedTensor planned(scheduler::Decision decision) const {
    auto made = planned_tensor({"w", {kCorrected}, DType::kF32}, std::move(decision), 1);
    EXPECT_TRUE(made);
    return *made;
  }

  double extreme(bool largest) const {
    std::vector<double> parts(kCorrected);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = applied_[i] / (2 * given_[i]);
    }
    return largest ? std::ranges::max(parts) : std::ranges::min(parts);
  }

  ResidualStore store_;
  const double prescale_;
  std::uint64_t step_ = 0;
  std::vector<double> given_ = std::vector<double>(kCorrected);
  std::vector<double> buffer_ = std::vector<double>(kCorrected);
  std::vector<double> applied_ = std::vector<double>(kCorrected);
};

// The momentum of the codec becomes that of SGD, and residuals of steps become gradients; only sent elements are
// masked.
TEST(ResidualStore, ResidualsCountOnceWhenATensorIsDenseAgain) {
  for (const double prescale : {1.0, 0.25}) {
    World world(prescale);
    for (int step = 0; step < 3; ++step) {
      world.step(world.sparse(4), 1.0F);
    }
    EXPECT_TRUE(world.store().has_residual(0));
    for (int step = 0; step < 40; ++step) {
      world.step(world.dense(), 0.0F);
    }
    EXPECT_FALSE(world.store().has_residual(0));
    // Masks clear the momentum of sent elements only; the others count wholly.
    EXPECT_NEAR(world.largest_part(), 1.0, 1e-5) << "prescale " << prescale;
    EXPECT_GE(world.least_part(), 0.499) << "prescale " << prescale;
  }
}

TEST(ResidualStore, AnotherRateGoesOnWithTheMomentum) {
  World world;
  world.step(world.sparse(4), 1.0F);
  const std::vector<float> before = world.store().of(0).momentum();
  EXPECT_GT(std::ranges::count_if(before, [](float value) { return value != 0; }), 0);
  world.step(world.sparse(2), 0.0F);
  const std::vector<float> after = world.store().of(0).momentum();
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(after[i] == 0.5F * before[i] || after[i] == 0) << i;
  }
  EXPECT_GT(std::ranges::count_if(after, [](float value) { return value != 0; }), 0);
}

TEST(ResidualStore, LoadingAResidualKeepsTheCodecState) {
  World world;
  world.step(world.sparse(4), 1.0F);
  const std::vector<std::byte> saved = world.store().codec_state(0);
  ASSERT_FALSE(saved.empty());
  const std::vector<float> nothing(kCorrected);
  world.store().load_residual(0, std::as_bytes(std::span(nothing)).data());
  EXPECT_EQ(world.store().codec_state(0), saved);
  EXPECT_EQ(world.store().residual_norm(0), 0.0);

  ASSERT_TRUE(world.store().load_codec_state(0, {}).ok());
  EXPECT_TRUE(world.store().codec_state(0).empty());
  ASSERT_TRUE(world.store().load_codec_state(0, saved).ok());
  EXPECT_EQ(world.store().codec_state(0), saved);
  EXPECT_FALSE(world.store().load_codec_state(0, std::span(saved).subspan(1)).ok());
  EXPECT_EQ(world.store().codec_state(0), saved);
}

}  // namespace
}  // namespace sirtaki::engine
