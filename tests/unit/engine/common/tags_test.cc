#include "runtime/engine/common/tags.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "scheduler/plan/first_layout.h"

namespace sirtaki::engine {
namespace {

TEST(Tags, EveryFieldSeparatesOperations) {
  std::set<std::uint64_t> tags;
  for (const std::uint32_t id : {1U, 2U, 0xffffffU}) {
    for (const auto& [stage, piece] : {std::pair(OpStage::kSizes, 0U), std::pair(OpStage::kPayload, 0U),
                                       std::pair(OpStage::kPayload, 1U), std::pair(OpStage::kPayload, 3U)}) {
      for (const std::uint64_t use : {0U, 1U, 0xfffffU}) {
        for (const std::uint16_t fingerprint : {std::uint16_t{0}, std::uint16_t{0xffff}}) {
          EXPECT_TRUE(tags.insert(op_tag(id, stage, piece, use, fingerprint).value).second);
        }
      }
    }
  }
  for (const std::uint16_t stream : {std::uint16_t{1}, std::uint16_t{2}, std::uint16_t{0xffff}}) {
    for (const std::uint32_t attempt : {0U, 1U, 256U, kStreamAttempts - 1}) {
      for (const std::uint32_t position : {0U, 1U, kExchangePosition, kFlagsPosition}) {
        for (const std::uint64_t step : {0U, 1U, 0x3ffU}) {
          for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
            EXPECT_TRUE(tags.insert(stream_tag(StreamId(stream), attempt, position, step, phase).value).second);
          }
        }
      }
    }
  }
}

TEST(Tags, GroupsContainAnOperationAStepOrAStreamAndNothingElse) {
  const StreamId stream(5);
  const net::TagGroup step = stream_step_tags(stream, 7, 1);
  for (const std::uint32_t position : {0U, 1U, kExchangePosition, kFlagsPosition}) {
    for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
      EXPECT_TRUE(step.contains(stream_tag(stream, 7, position, 1, phase)));
      EXPECT_FALSE(step.contains(stream_tag(stream, 7, position, 2, phase)));
      EXPECT_FALSE(step.contains(stream_tag(stream, 8, position, 1, phase)));
      EXPECT_FALSE(step.contains(stream_tag(StreamId(4), 7, position, 1, phase)));
    }
  }
  EXPECT_TRUE(stream_tags(stream).contains(step));
  EXPECT_FALSE(stream_tags(StreamId(4)).contains(step));
  const net::TagGroup operation = op_tags(9, 3, 77);
  EXPECT_TRUE(operation.contains(op_tag(9, OpStage::kSizes, 0, 3, 77)));
  EXPECT_TRUE(operation.contains(op_tag(9, OpStage::kPayload, 3, 3, 77)));
  EXPECT_FALSE(operation.contains(op_tag(9, OpStage::kPayload, 3, 4, 77)));
  EXPECT_FALSE(operation.contains(op_tag(8, OpStage::kPayload, 3, 3, 77)));
  EXPECT_FALSE(operation.contains(op_tag(9, OpStage::kPayload, 3, 3, 78)));
  EXPECT_FALSE(operation.contains(stream_tag(stream, 0, 0, 0)));
}

// Gives up every step of a stream until attempt numbers recur.
TEST(Tags, NoAttemptMeetsTheTombstoneOfAnOldOne) {
  net::Tombstones tombstones;
  const StreamId stream(5);
  for (std::uint32_t attempt = 0; attempt < 2 * kStreamAttempts + 10; ++attempt) {
    ASSERT_EQ(tombstones.find(stream_tag(stream, attempt, 3, 0)), nullptr) << attempt;
    tombstones.add(stream_step_tags(stream, attempt, 0), Status(Code::kAborted, "given up"));
    ASSERT_NE(tombstones.find(stream_tag(stream, attempt, 3, 0)), nullptr) << attempt;
  }
}

static_assert(scheduler::kMaxPartitions <= static_cast<std::int64_t>(kGatePosition));

}  // namespace
}  // namespace sirtaki::engine
