#include "kernels/momentum_correction/momentum_correction.h"

#include <gtest/gtest.h>

#include "kernels/group_topk/group_topk.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

void expect_same_as_reference(const Momentum& how, std::size_t n, Shape shape, Random& random) {
  const Array gradient = gradient_array(n, shape, random);
  Array momentum = gradient_array(n, shape, random);
  Array expected_momentum = momentum;
  Array step(n * sizeof(float), random());
  Array expected_step(n * sizeof(float), 0);
  const auto count = static_cast<std::int64_t>(n);
  momentum_correct(how, count, gradient.data(), momentum.data(), step.data());
  ref::momentum_correct(how, count, gradient.data(), expected_momentum.data(), expected_step.data());
  ASSERT_EQ(momentum.copy(), expected_momentum.copy());
  ASSERT_EQ(step.copy(), expected_step.copy());
  ASSERT_TRUE(momentum.guards_intact() && step.guards_intact());
}

TEST(MomentumCorrection, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const std::size_t n = seed < 6 ? seed : random() % 400;
        const Momentum how{pick<float>({0.9F, 0.0F, 1.0F}, random), random() % 2 == 0};
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, n, shape, random));
      }
    }
  });
}

TEST(MomentumCorrection, StepsMayReplaceTheGradientOrTheMomentum) {
  Array gradient = array_of({1, 2, 3});
  Array momentum = array_of({10, 20, 30});
  momentum_correct({0.5F, true}, 3, gradient.data(), momentum.data(), gradient.data());
  EXPECT_EQ(floats(momentum), (std::vector<float>{6, 12, 18}));
  EXPECT_EQ(floats(gradient), (std::vector<float>{4, 8, 12}));
  momentum_correct({0.5F, false}, 3, gradient.data(), momentum.data(), momentum.data());
  EXPECT_EQ(floats(momentum), (std::vector<float>{7, 14, 21}));
  EXPECT_THROW(momentum_correct({0.5F, true}, 3, gradient.data(), momentum.data(), momentum.data()), BugError);
}

// If all elements are sent each time, the sums of the steps are those of SGD with momentum; otherwise the residual
// holds all unsent elements.
TEST(MomentumCorrection, LosesNoStepUnderSelection) {
  Random random(23);
  const std::size_t n = 64;
  std::vector<float> velocity(n, 0.0F);
  std::vector<float> total(n, 0.0F);
  std::vector<float> sent_total(n, 0.0F);
  Array momentum = array_of(velocity);
  Array residual = array_of(velocity);
  const GroupTopk how{16, 4};
  Array payload(group_topk_bytes(how, n), 0);
  Array sent(n * sizeof(float), 0);
  for (int round = 0; round < 20; ++round) {
    // Small integers and a factor of one: all sums are exact.
    std::vector<float> gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      gradient[i] = static_cast<float>(random() % 9) - 4.0F;
      velocity[i] += gradient[i];
      total[i] += velocity[i];
    }
    momentum_correct({1.0F}, n, array_of(gradient).data(), momentum.data(), momentum.data());
    group_topk_encode(how, n, {momentum.data(), residual.data(), residual.data()}, payload.data());
    const std::byte* only = payload.data();
    group_topk_sum(how, n, {&only, 1}, sent.data());
    for (std::size_t i = 0; i < n; ++i) {
      sent_total[i] += floats(sent)[i];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_EQ(sent_total[i] + floats(residual)[i], total[i]) << "element " << i;
  }
}

}  // namespace
}  // namespace sirtaki::kernels
