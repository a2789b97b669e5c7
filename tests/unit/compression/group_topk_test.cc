#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kNine = 58982;  // 0.9

TEST(GroupTopk, SendsTheLargestOfEachGroup) {
  CodecRun run("group_topk", {1, 4, 1, kF32, 0, 0}, 8);
  EXPECT_EQ(run.step({1, -3, 2, 0, 5, 5, -6, 1}), (std::vector<float>{0, -3, 0, 0, 0, 0, -6, 0}));
  EXPECT_EQ(run.left, (std::vector<float>{1, 0, 2, 0, 5, 5, 0, 1}));
  EXPECT_EQ(run.step({0, 0, 0, 0, 0, 0, 0, 0}), (std::vector<float>{0, 0, 2, 0, 5, 0, 0, 0}));
}

// Deep Gradient Compression: u = m u + g; v = v + u (with Nesterov v + g + m u); elements of v that are sent become
// zero in u and v.
class Correction {
 public:
  Correction(std::size_t n, bool nesterov) : u_(n), v_(n), nesterov_(nesterov) {}

  std::vector<float> step(const std::vector<float>& gradient) {
    const float m = static_cast<float>(kNine) / 65536.0F;
    std::size_t largest = 0;
    for (std::size_t i = 0; i < u_.size(); ++i) {
      u_[i] = m * u_[i] + gradient[i];
      v_[i] += nesterov_ ? gradient[i] + m * u_[i] : u_[i];
      largest = std::fabs(v_[i]) > std::fabs(v_[largest]) ? i : largest;
    }
    std::vector<float> sent(u_.size());
    sent[largest] = v_[largest];
    u_[largest] = v_[largest] = 0;
    return sent;
  }

 private:
  std::vector<float> u_;
  std::vector<float> v_;
  bool nesterov_;
};

TEST(GroupTopk, CorrectsMomentum) {
  for (const bool nesterov : {false, true}) {
    std::mt19937_64 random(1);
    CodecRun run("group_topk", {1, 16, 1, kF32, kNine, nesterov ? 1 : 0}, 16);
    Correction expected(16, nesterov);
    for (int step = 0; step < 50; ++step) {
      std::vector<float> gradient(16);
      for (float& value : gradient) {
        value = static_cast<float>(random() % 2000) - 1000.0F;
      }
      ASSERT_EQ(run.step(gradient), expected.step(gradient)) << "step " << step << " nesterov " << nesterov;
    }
  }
}

TEST(GroupTopk, SendsTheSameInPiecesWithMomentum) {
  const Values values = {1, 8, 1, kF32, kNine, 0};
  CodecRun whole("group_topk", values, 32);
  CodecRun cut("group_topk", values, 32);
  for (int step = 0; step < 10; ++step) {
    std::vector<float> gradient(32);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(step) * 5) % 13) - 6.0F;
    }
    const std::vector<float> expected = whole.step(gradient);
    std::vector<float> out(32);
    for (const std::int64_t offset : {16, 0}) {
      const Piece piece{offset, 16};
      std::vector<std::byte> payload(cut.coder().payload_bytes(16));
      const kernels::Feedback arrays{.gradient = bytes(gradient), .residual = bytes(cut.left), .left = bytes(cut.left)};
      cut.coder().encode(piece, arrays.from(offset), payload);
      const std::byte* const only = payload.data();
      cut.coder().sum(piece, {&only, 1}, bytes(out) + offset * 4);
    }
    ASSERT_EQ(out, expected);
    ASSERT_EQ(cut.left, whole.left);
  }
}

// No element waits, so no momentum is stale: SGD with momentum, bit for bit.
TEST(GroupTopk, SendingAllElementsIsSgdWithMomentum) {
  const float m = static_cast<float>(kNine) / 65536.0F;
  for (const bool nesterov : {false, true}) {
    std::mt19937_64 random(2);
    CodecRun run("group_topk", {1, 8, 8, kF32, kNine, nesterov ? 1 : 0}, 20);
    std::vector<float> u(20);
    for (int step = 0; step < 20; ++step) {
      std::vector<float> gradient(20);
      std::vector<float> expected(20);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(random() % 2000) - 1000.0F;
        u[i] = m * u[i] + gradient[i];
        expected[i] = nesterov ? gradient[i] + m * u[i] : u[i];
      }
      ASSERT_EQ(run.step(gradient), expected) << "step " << step << " nesterov " << nesterov;
    }
  }
}

// Keeps 64 of 256 in steps 0 and 1, then 32, 16, 8, 4 and 3.
TEST(GroupTopk, WarmsUpByHalves) {
  const Values values = {1, 256, 3, kF32, 0, 0, 10, 64};
  const PayloadCodec& codec = *find_payload_codec("group_topk");
  ASSERT_TRUE(codec.check(values, {.numel = 512}).ok());
  CodecRun run("group_topk", values, 512);
  std::vector<float> gradient(512);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(1 + i * 7 % 512);
  }
  for (std::uint64_t step = 0; step < 12; ++step) {
    const std::size_t keep = std::vector<std::size_t>{64, 32, 16, 8, 4, 3, 3}[static_cast<std::size_t>(step / 2)];
    run.coder().at_step(step);
    EXPECT_EQ(run.coder().payload_bytes(512), 2 * keep * 5) << "step " << step;
    const std::vector<float> sent = run.step(gradient);
    EXPECT_EQ(static_cast<std::size_t>(std::ranges::count_if(sent, [](float v) { return v != 0; })), 2 * keep);
  }
  EXPECT_EQ(codec.payload_bytes(values, {.numel = 512}, 512), 2U * 3U * 5U);
  EXPECT_FALSE(codec.check(Values{1, 256, 3, kF32, 0, 0, 10, 257}, {.numel = 512}).ok());
  EXPECT_FALSE(codec.check(Values{1, 256, 3, kF32, 0, 0, 0, 64}, {.numel = 512}).ok());
}

// Payloads of ranks are steps already; momentum of the owner would count them twice.
TEST(GroupTopk, OwnersKeepNoMomentum) {
  const PayloadCodec& codec = *find_payload_codec("group_topk");
  const auto owner = codec.open_owner(Values{1, 2, 1, kF32, kNine, 0}, {.numel = 2});
  std::vector<float> left(2);
  for (int step = 0; step < 3; ++step) {
    std::vector<float> sums = {4, 1};
    std::vector<std::byte> payload(owner->payload_bytes(2));
    owner->encode({0, 2}, {.gradient = bytes(sums), .residual = bytes(left), .left = bytes(left)}, payload);
    EXPECT_EQ(left, (std::vector<float>{0, static_cast<float>(step + 1)}));
  }
}

TEST(GroupTopk, RefusesToKeepMoreThanAGroupHas) {
  const PayloadCodec& codec = *find_payload_codec("group_topk");
  EXPECT_TRUE(codec.check(Values{1, 4, 4, kF32, 0, 0}, {.numel = 100}).ok());
  EXPECT_EQ(codec.check(Values{1, 4, 5, kF32, 0, 0}, {.numel = 100}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sirtaki::compression
