#include "compression/codec_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compression/codecs/catalog.h"
#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

// Integers up to 127 pass int8 with scale 1, so residuals are exact.
TEST(Memory, ResidualHoldsUnsentPartsOfRankAndOwner) {
  const PayloadCodec& int8 = *find_payload_codec("int8");
  CodecState memory(int8, {1, 4}, {.numel = 10}, {.stripe = 4, .ranks = 2, .rank = 1});
  EXPECT_TRUE(memory.empty());

  std::vector<float> gradient = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const kernels::Feedback own = memory.feedback(bytes(gradient), 0);
  ASSERT_TRUE(own.valid());
  std::vector<float> left = {0, 0, 0, 1, 0, 2, 0, 0, 0, 3};
  std::copy_n(bytes(left), 40, own.left);

  // Rank 0 owns stripes 0 and 2; this rank owns elements 4 to 7.
  std::vector<float> sums = {1, 1, 1, 1};
  const kernels::Feedback owner = memory.owner_feedback(bytes(sums), 4);
  std::vector<float> unsent = {10, 20, 30, 40};
  std::copy_n(bytes(unsent), 16, owner.left);

  std::vector<float> residual(10);
  memory.residual(bytes(residual));
  EXPECT_EQ(residual, (std::vector<float>{0, 0, 0, 1, 10, 22, 30, 40, 0, 3}));

  std::vector<float> piece = {100, 100, 100};
  memory.flush_residual({.offset = 3, .numel = 3}, bytes(piece));
  EXPECT_EQ(piece, (std::vector<float>{101, 110, 122}));
  memory.residual(bytes(residual));
  EXPECT_EQ(residual, (std::vector<float>{0, 0, 0, 0, 0, 0, 30, 40, 0, 3}));

  memory.load_residual(bytes(gradient));
  memory.residual(bytes(residual));
  EXPECT_EQ(residual, gradient);
}

// Encodes and decodes one step on one rank; returns the result.
std::vector<float> step_of(CodecState& memory, std::uint64_t step, std::mt19937_64& random) {
  const std::int64_t numel = memory.shape().numel;
  std::vector<float> gradient(static_cast<std::size_t>(numel));
  for (float& value : gradient) {
    value = static_cast<float>(random() % 20001) / 100.0F - 100.0F;
  }
  memory.at_step(step);
  std::vector<std::byte> payload(memory.coder().payload_bytes(numel));
  memory.coder().encode({0, numel}, memory.feedback(bytes(gradient), 0), payload);
  const std::byte* const only = payload.data();
  memory.coder().sum({0, numel}, {&only, 1}, bytes(gradient));
  return gradient;
}

struct Case {
  const char* codec;
  std::vector<std::int64_t> params;
};

constexpr Shape kMatrix{.numel = 960, .rows = 24};
constexpr Ownership kAlone{.stripe = 960, .ranks = 1, .rank = 0};

// Returns cases whose codecs keep momentum, with factor 0.5.
std::vector<Case> with_memory() {
  const auto f32 = static_cast<std::int64_t>(DType::kF32);
  return {{"group_topk", {1, 64, 3, f32, 32768, 0}},
          {"group_topk", {1, 64, 3, f32, 32768, 1, 8, 16}},
          {"threshold_sparse", {1, 3000, 4, f32, 32768, 0}},
          {"threshold_sparse", {1, 3000, 100, f32, 0, 0, 6, 20000}},
          {"powersgd", {1, 3, 1}}};
}

TEST(Memory, CodersContinueFromSavedState) {
  for (const Case& one : with_memory()) {
    SCOPED_TRACE(one.codec);
    const PayloadCodec& codec = *find_payload_codec(one.codec);
    CodecState memory(codec, one.params, kMatrix, kAlone);
    std::mt19937_64 random(7);
    for (std::uint64_t step = 0; step < 3; ++step) {
      step_of(memory, step, random);
    }
    const std::vector<std::byte> saved = memory.state();
    ASSERT_TRUE(CodecState::check_state(saved, kMatrix.numel).ok());
    std::vector<float> residual(static_cast<std::size_t>(kMatrix.numel));
    memory.residual(bytes(residual));
    CodecState again(codec, one.params, kMatrix, kAlone);
    again.load_residual(bytes(residual));
    again.at_step(3);
    again.load_state(saved);
    std::mt19937_64 same = random;
    for (std::uint64_t step = 3; step < 12; ++step) {
      ASSERT_EQ(step_of(again, step, same), step_of(memory, step, random)) << "step " << step;
    }
  }
}

TEST(Memory, MomentumAloneMeansSomethingToOtherParameters) {
  const std::vector<Case> cases = with_memory();
  CodecState memory(*find_payload_codec("group_topk"), cases[0].params, kMatrix, kAlone);
  std::mt19937_64 random(8);
  step_of(memory, 0, random);
  ASSERT_FALSE(memory.momentum().empty());
  CodecState other(*find_payload_codec("threshold_sparse"), cases[2].params, kMatrix, kAlone);
  other.load_state(memory.state());
  EXPECT_EQ(other.momentum(), memory.momentum());
  CodecState without(*find_payload_codec("threshold_sparse"), cases[3].params, kMatrix, kAlone);
  without.load_state(memory.state());
  EXPECT_TRUE(without.momentum().empty());
  CodecState larger(*find_payload_codec("group_topk"), cases[0].params, {.numel = 961}, kAlone);
  larger.load_state(memory.state());
  EXPECT_TRUE(larger.momentum().empty());
}

TEST(Memory, RefusesDamagedState) {
  CodecState memory(*find_payload_codec("group_topk"), with_memory()[0].params, kMatrix, kAlone);
  std::mt19937_64 random(9);
  step_of(memory, 0, random);
  const std::vector<std::byte> good = memory.state();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(CodecState::check_state({good.data(), size}, kMatrix.numel).ok()) << size;
  }
  EXPECT_FALSE(CodecState::check_state(good, kMatrix.numel - 1).ok());
  std::vector<std::byte> nan = good;
  // The last number of the momentum precedes the length of the coder's own state.
  std::fill_n(nan.end() - 8, 4, std::byte{0xFF});
  EXPECT_FALSE(CodecState::check_state(nan, kMatrix.numel).ok());
  CodecState again(*find_payload_codec("group_topk"), with_memory()[0].params, kMatrix, kAlone);
  again.load_state(nan);
  EXPECT_TRUE(again.momentum().empty());
}

TEST(Memory, WithoutErrorFeedbackResidualsAreZero) {
  const PayloadCodec& int8 = *find_payload_codec("int8");
  CodecState memory(int8, {0, 256}, {.numel = 3}, {.stripe = 1024, .ranks = 4, .rank = 0});
  std::vector<float> gradient = {1, 2, 3};
  EXPECT_EQ(memory.feedback(bytes(gradient), 0).residual, nullptr);
  EXPECT_EQ(memory.owner_feedback(bytes(gradient), 0).residual, nullptr);
  EXPECT_TRUE(memory.empty());
}

// A world of ranks that runs the scatter reduction by hand: stripes to owners, which sum, encode again and send to all.
class ScatterWorld {
 public:
  ScatterWorld(const PayloadCodec& codec, std::int64_t numel, int ranks) : numel_(numel) {
    const std::vector<std::int64_t> values = {1, 64};
    const Shape shape{.numel = numel};
    stripe_ = codec.stripe(values, shape, ranks);
    for (Rank rank = 0; rank < ranks; ++rank) {
      const Ownership ownership{.stripe = stripe_, .ranks = ranks, .rank = rank};
      memories_.push_back(std::make_unique<CodecState>(codec, values, shape, ownership));
    }
  }

  CodecState& memory(Rank rank) { return *memories_[static_cast<std::size_t>(rank)]; }

  // Returns the sum, which is the same on all ranks.
  std::vector<float> step(std::vector<std::vector<float>>& gradients) {
    std::vector<float> out(static_cast<std::size_t>(numel_));
    for (std::int64_t offset = 0; offset < numel_; offset += stripe_) {
      const Piece piece{offset, std::min(stripe_, numel_ - offset)};
      const std::size_t at = static_cast<std::size_t>(offset) * sizeof(float);
      std::vector<float> sums(static_cast<std::size_t>(piece.numel));
      std::vector<std::vector<std::byte>> payloads;
      std::vector<const std::byte*> pointers;
      for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
        CodecState& one = *memories_[rank];
        payloads.emplace_back(one.coder().payload_bytes(piece.numel));
        one.coder().encode(piece, one.feedback(bytes(gradients[rank]) + at, offset), payloads.back());
        pointers.push_back(payloads.back().data());
      }
      CodecState& owner = memory(memory(0).ownership().owner_of(offset));
      owner.coder().sum(piece, pointers, bytes(sums));
      std::vector<std::byte> answer(owner.owner_coder().payload_bytes(piece.numel));
      owner.owner_coder().encode(piece, owner.owner_feedback(bytes(sums), offset), answer);
      const std::byte* const only = answer.data();
      owner.owner_coder().sum(piece, {&only, 1}, bytes(out) + at);
    }
    return out;
  }

  std::vector<float> residual() {
    std::vector<float> total(static_cast<std::size_t>(numel_));
    for (const auto& memory : memories_) {
      add(*memory, total);
    }
    return total;
  }

 private:
  static void add(const CodecState& memory, std::vector<float>& total) {
    std::vector<float> one(total.size());
    memory.residual(bytes(one));
    for (std::size_t i = 0; i < total.size(); ++i) {
      total[i] += one[i];
    }
  }

  const std::int64_t numel_;
  std::int64_t stripe_ = 0;
  std::vector<std::unique_ptr<CodecState>> memories_;
};

// All numbers are integers far below 2^24, so every sum here is exact.
TEST(Memory, InputsAreResultsPlusResiduals) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE("ranks " + std::to_string(ranks));
    std::mt19937_64 random(static_cast<std::uint64_t>(ranks));
    constexpr std::int64_t kNumel = 5000;
    ScatterWorld world(*find_payload_codec("int8"), kNumel, ranks);
    std::vector<float> given(kNumel);
    std::vector<float> got(kNumel);
    std::vector<std::vector<float>> gradients(static_cast<std::size_t>(ranks), std::vector<float>(kNumel));
    for (int step = 0; step < 10; ++step) {
      for (auto& gradient : gradients) {
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = static_cast<float>(random() % 2001) - 1000.0F;
          given[i] += gradient[i];
        }
      }
      const std::vector<float> out = world.step(gradients);
      std::transform(out.begin(), out.end(), got.begin(), got.begin(), std::plus<>());
      std::vector<float> all = world.residual();
      EXPECT_NE(all, std::vector<float>(kNumel));
      std::transform(all.begin(), all.end(), got.begin(), all.begin(), std::plus<>());
      ASSERT_EQ(all, given) << "step " << step;
    }
    // Flushed residuals are part of the gradients.
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      std::fill(gradients[rank].begin(), gradients[rank].end(), 0.0F);
      world.memory(static_cast<Rank>(rank)).flush_residual({0, kNumel}, bytes(gradients[rank]));
      std::transform(gradients[rank].begin(), gradients[rank].end(), got.begin(), got.begin(), std::plus<>());
    }
    EXPECT_EQ(got, given);
    EXPECT_EQ(world.residual(), std::vector<float>(kNumel));
  }
}

TEST(Memory, GivesEveryStripeOneOwner) {
  const PayloadCodec& int8 = *find_payload_codec("int8");
  for (const int ranks : {1, 3, 4}) {
    std::vector<float> gradient(1030);
    std::vector<float> total(1030);
    for (Rank rank = 0; rank < ranks; ++rank) {
      CodecState memory(int8, {1, 4}, {.numel = 1030}, {.stripe = 100, .ranks = ranks, .rank = rank});
      for (std::int64_t offset = 0; offset < 1030; offset += 10) {
        if (memory.ownership().owner_of(offset) == rank) {
          const std::vector<float> ones(10, 1.0F);
          std::memcpy(memory.owner_feedback(bytes(gradient), offset).left, ones.data(), 40);
        }
      }
      std::vector<float> residual(1030);
      memory.residual(bytes(residual));
      std::transform(residual.begin(), residual.end(), total.begin(), total.begin(), std::plus<>());
    }
    EXPECT_EQ(total, std::vector<float>(1030, 1.0F)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace sirtaki::compression
