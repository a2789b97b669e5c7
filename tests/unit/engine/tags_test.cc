#include "runtime/engine/tags.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace sirtaki::engine {
namespace {

TEST(Tags, EveryFieldTellsOperationsApart) {
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
    for (const std::uint32_t attempt : {0U, 1U, 255U}) {
      for (const std::uint32_t position : {0U, 1U, kExchangePosition, kFlagsPosition}) {
        for (const std::uint64_t step : {0U, 1U, 0x1ffffU}) {
          for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
            EXPECT_TRUE(tags.insert(stream_tag(StreamId(stream), attempt, position, step, phase).value).second);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sirtaki::engine
