#include "runtime/engine/ops/named_parts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace sirtaki::engine {
namespace {

TEST(NamedParts, CoverEveryElementOnceInOrder) {
  for (const std::int64_t elements : {1, 6, 7, 8, 100}) {
    NamedParts parts(elements, 7);
    std::int64_t covered = 0;
    while (const auto part = parts.next()) {
      EXPECT_EQ(part->begin, covered);
      EXPECT_GE(part->count, 1);
      EXPECT_LE(part->count, 7);
      covered += part->count;
      parts.finished(part->index);
    }
    EXPECT_EQ(covered, elements);
    EXPECT_TRUE(parts.over());
    EXPECT_EQ(parts.count(), static_cast<std::uint32_t>((elements + 6) / 7));
  }
}

TEST(NamedParts, AnOperationThatIsNotCutIsOnePiece) {
  NamedParts parts;
  ASSERT_TRUE(parts.next());
  EXPECT_FALSE(parts.next());
  EXPECT_FALSE(parts.over());
  parts.finished(0);
  EXPECT_TRUE(parts.over());
}

TEST(NamedParts, AWindowIsInFlightAndMovesWithItsOldestPiece) {
  NamedParts parts(10, 1);
  EXPECT_EQ(parts.next()->index, 0U);
  EXPECT_EQ(parts.next()->index, 1U);
  EXPECT_FALSE(parts.next());
  parts.finished(1);
  EXPECT_FALSE(parts.next());
  parts.finished(0);
  EXPECT_EQ(parts.next()->index, 2U);
  EXPECT_EQ(parts.next()->index, 3U);
  EXPECT_FALSE(parts.next());
  EXPECT_THROW(parts.finished(1), BugError);
}

TEST(NamedParts, NothingStartsAfterGivingUp) {
  NamedParts parts(10, 1);
  const auto first = parts.next();
  parts.give_up();
  EXPECT_FALSE(parts.next());
  EXPECT_FALSE(parts.over());
  parts.finished(first->index);
  EXPECT_TRUE(parts.over());
}

// Each rank finishes pieces of an allreduce at its own pace, but a piece only after every rank has started it.
TEST(NamedParts, PiecesOfAnAllreduceInFlightAnywhereNeverShareATag) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    constexpr std::size_t kRanks = 3;
    constexpr std::uint32_t kParts = 40;
    std::vector<NamedParts> ranks(kRanks, NamedParts(kParts, 1));
    std::vector<std::vector<std::uint32_t>> in_flight(kRanks);
    std::vector<std::size_t> started_by(kParts, 0);
    const auto start = [&](std::size_t rank) {
      while (const auto part = ranks[rank].next()) {
        in_flight[rank].push_back(part->index);
        ++started_by[part->index];
      }
    };
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      start(rank);
    }
    for (int steps = 0; steps < 4000; ++steps) {
      for (const auto& one : in_flight) {
        for (const auto& other : in_flight) {
          for (const std::uint32_t a : one) {
            for (const std::uint32_t b : other) {
              ASSERT_TRUE(a == b || a % NamedParts::kCycle != b % NamedParts::kCycle) << a << " and " << b;
            }
          }
        }
      }
      const std::size_t rank = random() % kRanks;
      auto& mine = in_flight[rank];
      if (mine.empty()) {
        continue;
      }
      const auto place = mine.begin() + static_cast<std::ptrdiff_t>(random() % mine.size());
      if (started_by[*place] == kRanks) {
        ranks[rank].finished(*place);
        mine.erase(place);
        start(rank);
      }
    }
    for (const NamedParts& parts : ranks) {
      EXPECT_TRUE(parts.over());
    }
  }
}

}  // namespace
}  // namespace sirtaki::engine
