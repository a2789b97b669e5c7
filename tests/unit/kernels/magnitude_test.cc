#include "kernels/magnitude/magnitude.h"

#include <gtest/gtest.h>

#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

void expect_same(const Magnitude& got, const Magnitude& expected) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(got.sum), std::bit_cast<std::uint64_t>(expected.sum));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(got.largest), std::bit_cast<std::uint32_t>(expected.largest));
}

TEST(Magnitude, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const Array gradient = gradient_array(seed < 20 ? seed : random() % 2500, shape, random);
        Array residual = gradient_array(floats(gradient).size(), shape, random);
        const std::vector<std::byte> before = residual.copy();
        const Feedback both{gradient.data(), residual.data(), residual.data()};
        expect_same(magnitude(count(gradient), both), ref::magnitude(count(gradient), both));
        expect_same(magnitude(count(gradient), {gradient.data()}), ref::magnitude(count(gradient), {gradient.data()}));
        ASSERT_EQ(residual.copy(), before);
      }
    }
  });
}

TEST(Magnitude, IsOfTheSumsAndDoesNotOverflow) {
  const Array gradient = array_of({1, -2, 0x1.FFFFFEp127F, -0x1.FFFFFEp127F});
  Array residual = array_of({1, -3, 0, 0});
  const Magnitude all = magnitude(4, {gradient.data(), residual.data(), residual.data()});
  EXPECT_EQ(all.sum, 7 + 2 * 0x1.FFFFFEp127);
  EXPECT_EQ(all.largest, 0x1.FFFFFEp127F);
  const Magnitude none = magnitude(0, {gradient.data()});
  EXPECT_EQ(none.sum, 0);
  EXPECT_EQ(none.largest, 0);
}

TEST(Magnitude, ShowsWhatIsNotFinite) {
  const Array infinite = array_of({1, -kInf, 2});
  EXPECT_EQ(magnitude(3, {infinite.data()}).sum, std::numeric_limits<double>::infinity());
  EXPECT_EQ(magnitude(3, {infinite.data()}).largest, kInf);
  const Array nan = array_of({kInf, -kNan, 2});
  EXPECT_TRUE(std::isnan(magnitude(3, {nan.data()}).sum));
  EXPECT_TRUE(std::isnan(magnitude(3, {nan.data()}).largest));
}

}  // namespace
}  // namespace sirtaki::kernels
