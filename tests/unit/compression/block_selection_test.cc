#include "compression/block_selection.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/base/check.h"
#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

TEST(BlockSelection, ChoosesByTheMeanAndPadsAShortBlock) {
  const BlockSelection selection(10, 4, 2, DType::kF32);
  EXPECT_EQ(selection.blocks(), 3);
  EXPECT_EQ(selection.values(), 8);
  EXPECT_EQ(selection.value_bytes(), 32U);
  std::vector<float> gradient = {1, 1, 1, 1, 2, 2, 2, -3, 4, 4};
  std::vector<float> left = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1};
  const kernels::Feedback arrays{.gradient = bytes(gradient), .residual = bytes(left), .left = bytes(left)};
  std::vector<float> norms(3);
  std::vector<std::uint16_t> ids(2);
  std::vector<float> values(8, 77.0F);
  auto* const id_bytes = reinterpret_cast<std::byte*>(ids.data());
  selection.norms(arrays, bytes(norms));
  EXPECT_EQ(norms, (std::vector<float>{1, 2.25F, 5}));
  selection.select(bytes(norms), id_bytes);
  EXPECT_EQ(ids, (std::vector<std::uint16_t>{1, 2}));
  EXPECT_TRUE(selection.valid(id_bytes));
  selection.gather(id_bytes, arrays, bytes(values));
  EXPECT_EQ(values, (std::vector<float>{2, 2, 2, -3, 5, 5, 0, 0}));
  EXPECT_EQ(left, (std::vector<float>{1, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
  std::vector<float> out(10, 77.0F);
  const BlockSelection::Part part{id_bytes, bytes(values)};
  const BlockSelection::Part parts[] = {part, part};
  selection.sum(parts, bytes(out));
  EXPECT_EQ(out, (std::vector<float>{0, 0, 0, 0, 4, 4, 4, -6, 10, 10}));
}

// Part of one rank in the shared reduction: payloads of blocks that all ranks agreed on.
struct Member {
  std::vector<float> gradient;
  std::vector<float> left;
  std::vector<float> norms;
  std::vector<float> values;

  kernels::Feedback arrays() { return {.gradient = bytes(gradient), .residual = bytes(left), .left = bytes(left)}; }
};

// Integers, so that all sums are exact.
TEST(BlockSelection, SharedByAllRanksLosesNothing) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t numel : {37, 64, 100, 101}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(numel) + " elements");
      const auto size = static_cast<std::size_t>(numel);
      std::mt19937_64 random(static_cast<std::uint64_t>(numel));
      const BlockSelection selection(numel, 10, 2, DType::kF32);
      std::vector<Member> world(static_cast<std::size_t>(ranks));
      std::vector<float> balance(size);  // inputs minus results
      for (Member& member : world) {
        member.left.resize(size);
        member.norms.resize(static_cast<std::size_t>(selection.blocks()));
        member.values.resize(static_cast<std::size_t>(selection.values()));
      }
      for (int step = 0; step < 20; ++step) {
        std::vector<float> norms(static_cast<std::size_t>(selection.blocks()));
        for (Member& member : world) {
          member.gradient.resize(size);
          for (std::size_t i = 0; i < size; ++i) {
            member.gradient[i] = static_cast<float>(random() % 201) - 100.0F;
            balance[i] += member.gradient[i];
          }
          selection.norms(member.arrays(), bytes(member.norms));
          for (std::size_t b = 0; b < norms.size(); ++b) {
            norms[b] += member.norms[b];
          }
        }
        std::vector<std::uint16_t> ids(2);
        auto* const id_bytes = reinterpret_cast<std::byte*>(ids.data());
        selection.select(bytes(norms), id_bytes);
        std::vector<float> sums(static_cast<std::size_t>(selection.values()));
        for (Member& member : world) {
          selection.gather(id_bytes, member.arrays(), bytes(member.values));
          for (std::size_t i = 0; i < sums.size(); ++i) {
            sums[i] += member.values[i];
          }
        }
        std::vector<float> out(size);
        const BlockSelection::Part part{id_bytes, bytes(sums)};
        selection.sum({&part, 1}, bytes(out));
        std::vector<float> residual(size);
        for (std::size_t i = 0; i < size; ++i) {
          balance[i] -= out[i];
          for (const Member& member : world) {
            residual[i] += member.left[i];
          }
        }
        ASSERT_EQ(residual, balance) << "step " << step;
      }
    }
  }
}

TEST(BlockSelection, IsWhatTheCodecsOfBlocksHave) {
  const auto filters =
      find_payload_codec("kernel_sparse")
          ->selection(Values{1, 0, 3, static_cast<std::int64_t>(DType::kF16)}, {.numel = 96, .rows = 8});
  ASSERT_TRUE(filters);
  EXPECT_EQ(filters->blocks(), 8);
  EXPECT_EQ(filters->value_bytes(), 72U);
  const auto blocks = find_payload_codec("block_topk")->selection(Values{1, 10, 3}, {.numel = 96});
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->blocks(), 10);
  EXPECT_EQ(blocks->value_bytes(), 120U);
  EXPECT_FALSE(find_payload_codec("int8")->selection(Values{1, 64}, {.numel = 96}));
}

TEST(BlockSelection, RefusesImpossibleBlocks) {
  EXPECT_THROW(BlockSelection(100, 10, 11, DType::kF32), BugError);
  EXPECT_THROW(BlockSelection(100, 10, 0, DType::kF32), BugError);
  EXPECT_THROW(BlockSelection(65537, 1, 1, DType::kF32), BugError);
  const PayloadCodec& codec = *find_payload_codec("block_topk");
  EXPECT_TRUE(codec.check(Values{1, 10, 10}, {.numel = 100}).ok());
  EXPECT_EQ(codec.check(Values{1, 10, 11}, {.numel = 100}).code(), Code::kInvalidArgument);
  EXPECT_EQ(codec.check(Values{1, 1, 1}, {.numel = 65537}).code(), Code::kInvalidArgument);
  const PayloadCodec& filters = *find_payload_codec("kernel_sparse");
  const Values values = {1, 0, 1, static_cast<std::int64_t>(DType::kF32)};
  EXPECT_TRUE(filters.check(values, {.numel = 12, .rows = 3}).ok());
  EXPECT_EQ(filters.check(values, {.numel = 12, .rows = 5}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sirtaki::compression
