#include "kernels/low_rank/low_rank.h"

#include <gtest/gtest.h>

#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

LowRank random_low_rank(std::uint64_t seed, Random& random) {
  const auto rank = pick<std::int32_t>({1, 2, 3, 4, 5, 8, 31, 32}, random);
  const auto rows = static_cast<std::int64_t>(seed < 3 ? seed : random() % 40);
  return {rows, static_cast<std::int64_t>(random() % 150), rank};
}

std::size_t elements(const LowRank& shape) {
  return static_cast<std::size_t>(shape.rows * shape.cols);
}
std::size_t left_elements(const LowRank& shape) {
  return static_cast<std::size_t>(shape.rows * shape.rank);
}
std::size_t right_elements(const LowRank& shape) {
  return static_cast<std::size_t>(shape.cols * shape.rank);
}

void expect_same_as_reference(const LowRank& shape, Shape kind, bool feedback, Random& random) {
  const Array gradient = gradient_array(elements(shape), kind, random);
  const Array residual = gradient_array(elements(shape), kind, random);
  const Twins twins(gradient, feedback ? &residual : nullptr, random);
  const Array p = gradient_array(left_elements(shape), kind, random);
  const Array q = gradient_array(right_elements(shape), kind, random);
  Array made_p(p.size(), random());
  Array expected_p(p.size(), 0);
  low_rank_project(shape, twins.arrays(), q.data(), made_p.data());
  ref::low_rank_project(shape, twins.expected(), q.data(), expected_p.data());
  ASSERT_EQ(made_p.copy(), expected_p.copy());
  Array made_q(q.size(), random());
  Array expected_q(q.size(), 0);
  low_rank_project_back(shape, twins.arrays(), p.data(), made_q.data());
  ref::low_rank_project_back(shape, twins.expected(), p.data(), expected_q.data());
  ASSERT_EQ(made_q.copy(), expected_q.copy());
  Array out(gradient.size(), random());
  Array expected(gradient.size(), 0);
  low_rank_rebuild(shape, twins.arrays(), p.data(), q.data(), out.data());
  ref::low_rank_rebuild(shape, twins.expected(), p.data(), q.data(), expected.data());
  ASSERT_EQ(out.copy(), expected.copy());
  twins.expect_same_left();
  const Twins only_left(gradient, feedback ? &residual : nullptr, random);
  low_rank_rebuild(shape, only_left.arrays(), p.data(), q.data(), nullptr);
  ref::low_rank_rebuild(shape, only_left.expected(), p.data(), q.data(), nullptr);
  only_left.expect_same_left();
  ASSERT_TRUE(made_p.guards_intact() && made_q.guards_intact() && out.guards_intact());
}

TEST(LowRank, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape kind : kShapes) {
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(kind)) + " seed " + std::to_string(seed));
        Random random(seed);
        const LowRank shape = random_low_rank(seed, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(shape, kind, true, random));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(shape, kind, false, random));
      }
    }
  });
}

TEST(LowRank, AddsInTheStatedOrder) {
  // Columns 0 and 16 share a sum, to which column 8 is added: two ones are lost, not a two.
  std::vector<float> row(17, 0.0F);
  row[0] = 0x1p24F;
  row[16] = 1;
  row[8] = 1;
  const Array a = array_of(row);
  const Array ones = array_of(std::vector<float>(17, 1.0F));
  Array p(4, 0);
  low_rank_project({1, 17, 1}, {a.data()}, ones.data(), p.data());
  EXPECT_EQ(floats(p)[0], 0x1p24F);
  Array q(4, 0);
  low_rank_project_back({17, 1, 1}, {a.data()}, ones.data(), q.data());
  EXPECT_EQ(floats(q)[0], 0x1p24F);
  const Array backwards = array_of({1, 1, 0x1p24F});
  low_rank_project_back({3, 1, 1}, {backwards.data()}, ones.data(), q.data());
  EXPECT_EQ(floats(q)[0], 0x1p24F + 2);
}

double dot(const std::vector<float>& vectors, std::size_t n, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += static_cast<double>(vectors[a * n + i]) * static_cast<double>(vectors[b * n + i]);
  }
  return sum;
}

TEST(LowRank, MakesVectorsOrthonormalAtAnyScale) {
  for (const float scale : {1.0F, 1e-30F, 1e30F}) {
    for (const std::size_t n : {32, 100, 1001}) {
      SCOPED_TRACE("scale " + std::to_string(scale) + " length " + std::to_string(n));
      Random random(n);
      Array vectors = gradient_array(32 * n, Shape::kNormal, random);
      std::vector<float> values = floats(vectors);
      for (float& value : values) {
        value *= scale;
      }
      vectors = array_of(values);
      ASSERT_EQ(orthonormalise(static_cast<std::int64_t>(n), 32, vectors.data()), 0U);
      ASSERT_TRUE(vectors.guards_intact());
      for (std::size_t a = 0; a < 32; ++a) {
        for (std::size_t b = 0; b <= a; ++b) {
          ASSERT_NEAR(dot(floats(vectors), n, a, b), a == b ? 1 : 0, 2e-6);
        }
      }
    }
  }
}

TEST(LowRank, DropsVectorsThatDependOnOthers) {
  Array vectors = array_of({1, 2, 2, -2, -4, -4, 0, 0, 0, 0, 1, 0, kInf, 0, 0, 1, 1, 1, 5, 6, 7});
  EXPECT_EQ(orthonormalise(3, 7, vectors.data()), 0b1010110U);
  const std::vector<float> made = floats(vectors);
  EXPECT_EQ(std::vector<float>(made.begin() + 3, made.begin() + 9), std::vector<float>(6, 0.0F));
  EXPECT_FLOAT_EQ(made[0], 1.0F / 3.0F);
  EXPECT_NEAR(dot(made, 3, 0, 3), 0, 1e-6);
  EXPECT_NEAR(dot(made, 3, 5, 5), 1, 1e-6);
}

double squares(const std::vector<float>& values) {
  return dot(values, values.size(), 0, 0);
}

// One step of the power method finds a matrix whose rank is not above that of the factors.
TEST(LowRank, FindsAMatrixOfItsRank) {
  for (const std::int32_t rank : {1, 2, 4}) {
    Random random(static_cast<std::uint64_t>(rank));
    const LowRank shape{60, 90, rank};
    const Array left_factor = gradient_array(left_elements(shape), Shape::kNormal, random);
    const Array right_factor = gradient_array(right_elements(shape), Shape::kNormal, random);
    Array a(elements(shape) * 4, 0);
    const Array nothing = array_of(std::vector<float>(elements(shape), 0.0F));
    ref::low_rank_rebuild(shape, {nothing.data()}, left_factor.data(), right_factor.data(), a.data());
    Array residual = array_of(std::vector<float>(elements(shape), 0.0F));
    const Feedback arrays{a.data(), residual.data(), residual.data()};
    Array p(left_elements(shape) * 4, 0);
    Array q = gradient_array(right_elements(shape), Shape::kNormal, random);
    low_rank_project(shape, arrays, q.data(), p.data());
    ASSERT_EQ(orthonormalise(shape.rows, rank, p.data()), 0U);
    low_rank_project_back(shape, arrays, p.data(), q.data());
    Array out(a.size(), 0);
    low_rank_rebuild(shape, arrays, p.data(), q.data(), out.data());
    EXPECT_LT(squares(floats(residual)), 1e-9 * squares(floats(a)));
  }
}

// P is orthonormal and Q = A' P, so P Q' is a projection of A: the rest is no longer than A, and orthogonal to P Q'.
TEST(LowRank, LeavesWhatIsOrthogonalToWhatItGives) {
  Random random(9);
  const LowRank shape{70, 50, 3};
  const Array gradient = gradient_array(elements(shape), Shape::kNormal, random);
  Array residual = gradient_array(elements(shape), Shape::kNormal, random);
  std::vector<float> a = floats(gradient);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] += floats(residual)[i];
  }
  const Feedback arrays{gradient.data(), residual.data(), residual.data()};
  Array p(left_elements(shape) * 4, 0);
  Array q = gradient_array(right_elements(shape), Shape::kNormal, random);
  low_rank_project(shape, arrays, q.data(), p.data());
  orthonormalise(shape.rows, shape.rank, p.data());
  low_rank_project_back(shape, arrays, p.data(), q.data());
  Array out(gradient.size(), 0);
  low_rank_rebuild(shape, arrays, p.data(), q.data(), out.data());
  const std::vector<float> left = floats(residual);
  EXPECT_NEAR(squares(floats(out)) + squares(left), squares(a), 1e-4 * squares(a));
  EXPECT_LT(squares(left), squares(a));
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(left[i], a[i] - floats(out)[i]);
  }
}

TEST(LowRank, RefusesImpossibleShapes) {
  EXPECT_THROW(low_rank_project({1, 1, 0}, {nullptr}, nullptr, nullptr), BugError);
  EXPECT_THROW(low_rank_project_back({1, 1, 33}, {nullptr}, nullptr, nullptr), BugError);
  EXPECT_THROW(low_rank_rebuild({-1, 1, 1}, {nullptr}, nullptr, nullptr, nullptr), BugError);
  EXPECT_THROW(orthonormalise(1, 33, nullptr), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
