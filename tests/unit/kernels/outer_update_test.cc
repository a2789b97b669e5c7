#include "kernels/outer_update/outer_update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/anchor/anchor.h"
#include "kernels/momentum_correction/momentum_correction.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

struct Update {
  OuterStep how;
  bool with_momentum;
  Array anchor;
  Array momentum;
  Array mean;

  Update(std::uint64_t seed, Shape shape, std::size_t n, Random& random)
      : how{pick<float>({0.7F, 1.0F, 0.0F, 0.1F}, random), pick<float>({0.9F, 0.5F, 1.0F}, random), seed % 2 == 0,
            seed % 4 < 2},
        with_momentum(seed % 5 != 0),
        anchor(gradient_array(n, shape, random)),
        momentum(gradient_array(n, shape, random)),
        mean(gradient_array(n, shape, random)) {}

  std::int64_t n() const { return count(anchor); }
  std::byte* momentum_or_none() { return with_momentum ? momentum.data() : nullptr; }
};

void expect_equal(const Update& found, const Update& expected) {
  ASSERT_EQ(found.anchor.copy(), expected.anchor.copy());
  ASSERT_EQ(found.momentum.copy(), expected.momentum.copy());
  ASSERT_EQ(found.mean.copy(), expected.mean.copy());
  ASSERT_TRUE(found.anchor.guards_intact() && found.momentum.guards_intact() && found.mean.guards_intact());
}

// Computes the step from operations of other kernels, one pass for each.
void in_several_passes(Update& c) {
  const Array before = c.anchor;
  if (c.how.of_differences) {
    scale(DType::kF32, c.mean.data(), c.n(), -1.0);
  } else {
    subtract(c.n(), c.anchor.data(), c.mean.data(), c.mean.data());
  }
  if (c.with_momentum) {
    momentum_correct({c.how.momentum, c.how.nesterov}, c.n(), c.mean.data(), c.momentum.data(), c.mean.data());
  }
  subtract_scaled(c.n(), c.anchor.data(), c.how.lr, c.mean.data(), c.anchor.data());
  std::ranges::copy(before.copy(), c.mean.data());
}

TEST(OuterUpdate, IsTheReferenceAndItsPassesOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        Update fused(seed, shape, seed < 40 ? seed : random() % 400, random);
        Update expected = fused;
        Update passes = fused;
        outer_update(fused.how, fused.n(), fused.anchor.data(), fused.momentum_or_none(), fused.mean.data());
        ref::outer_update(expected.how, expected.n(), expected.anchor.data(), expected.momentum_or_none(),
                          expected.mean.data());
        in_several_passes(passes);
        ASSERT_NO_FATAL_FAILURE(expect_equal(fused, expected));
        ASSERT_NO_FATAL_FAILURE(expect_equal(fused, passes));
      }
    }
  });
}

// torch.optim.SGD in numbers of type T, the gradient of a step being anchor - mean.
template <class T>
class Sgd {
 public:
  Sgd(const OuterStep& how, const std::vector<float>& params)
      : lr_(static_cast<T>(how.lr)),
        momentum_(static_cast<T>(how.momentum)),
        nesterov_(how.nesterov),
        params_(params.begin(), params.end()) {}

  void step(const std::vector<float>& means) {
    const bool first = buffers_.empty();
    buffers_.resize(params_.size());
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const T gradient = params_[i] - static_cast<T>(means[i]);
      buffers_[i] = first ? gradient : momentum_ * buffers_[i] + gradient;
      params_[i] -= lr_ * (nesterov_ ? gradient + momentum_ * buffers_[i] : buffers_[i]);
    }
  }
  const std::vector<T>& params() const { return params_; }

 private:
  T lr_;
  T momentum_;
  bool nesterov_;
  std::vector<T> params_;
  std::vector<T> buffers_;
};

// Returns a part of the next mean of an anchor, as a model or as a difference.
Array mean_of(bool of_differences, const std::vector<float>& means, const std::vector<float>& anchor) {
  std::vector<float> given = means;
  for (std::size_t i = 0; of_differences && i < given.size(); ++i) {
    given[i] -= anchor[i];
  }
  return array_of(given);
}

TEST(OuterUpdate, IsSgdOfTorch) {
  for (const OuterStep how : {OuterStep{0.7F, 0.9F, true}, OuterStep{0.7F, 0.9F, false}, OuterStep{0.3F, 0.5F, true}}) {
    Random random(11);
    Array anchor = gradient_array(64, Shape::kNormal, random);
    Array momentum = array_of(std::vector<float>(64, 0.0F));
    Sgd<float> same(how, floats(anchor));
    Sgd<double> near(how, floats(anchor));
    for (int k = 0; k < 8; ++k) {
      const std::vector<float> means = floats(gradient_array(64, Shape::kNormal, random));
      Array given = array_of(means);
      outer_update(how, 64, anchor.data(), momentum.data(), given.data());
      same.step(means);
      near.step(means);
      ASSERT_EQ(floats(anchor), same.params()) << "step " << k;
      for (std::size_t i = 0; i < 64; ++i) {
        ASSERT_NEAR(floats(anchor)[i], near.params()[i], 1e-7) << "step " << k << " element " << i;
      }
    }
  }
}

// Uses numbers whose sums and products are exact.
TEST(OuterUpdate, DifferencesAndModelsAreTheSameStep) {
  const std::vector<float> start = {1, -2, 3, 0, 8};
  for (const bool of_differences : {false, true}) {
    const OuterStep how{0.5F, 0.5F, true, of_differences};
    Array anchor = array_of(start);
    Array momentum = array_of(std::vector<float>(start.size(), 0.0F));
    Sgd<double> sgd(how, start);
    for (const std::vector<float>& means :
         {std::vector<float>{3, 4, 3, -2, 0}, std::vector<float>{1, 1, 5, 2, 4}, std::vector<float>{0, 0, 0, 0, 0}}) {
      const Array before = anchor;
      Array given = mean_of(of_differences, means, floats(anchor));
      outer_update(how, count(anchor), anchor.data(), momentum.data(), given.data());
      sgd.step(means);
      EXPECT_EQ(floats(anchor), std::vector<float>(sgd.params().begin(), sgd.params().end()));
      EXPECT_EQ(given.copy(), before.copy()) << "what the anchor was";
    }
  }
}

TEST(OuterUpdate, WithoutMomentumIsAPartOfTheWay) {
  Array anchor = array_of({8, -8, kNan});
  Array mean = array_of({4, 0, 1});
  outer_update({0.25F}, 3, anchor.data(), nullptr, mean.data());
  EXPECT_EQ(floats(anchor)[0], 7);
  EXPECT_EQ(floats(anchor)[1], -6);
  EXPECT_TRUE(std::isnan(floats(anchor)[2]));
  outer_update({1.0F}, 0, nullptr, nullptr, nullptr);
  EXPECT_THROW(outer_update({1.0F}, -1, anchor.data(), nullptr, mean.data()), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
