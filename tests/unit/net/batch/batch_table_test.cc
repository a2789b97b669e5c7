// The table of a batch comes from the memory of another rank.
#include "runtime/net/batch/batch_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace sirtaki::net {
namespace {

TEST(BatchTable, NoInputLiesOutsideItsBlock) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  int good = 0;
  for (int i = 0; i < 100'000; ++i) {
    // Small numbers, so that some tables are right.
    std::vector<std::uint32_t> words(random() % 40);
    std::ranges::generate(words,
                          [&] { return static_cast<std::uint32_t>(random() % 8 == 0 ? random() : random() % 200); });
    const ConstBytes block = std::as_bytes(std::span(words));
    const auto count = static_cast<std::uint32_t>(random() % 8);
    const auto records = read_batch_table(block, count);
    if (!records) {
      EXPECT_EQ(records.status().code(), Code::kCorrupt);
      continue;
    }
    ++good;
    ASSERT_EQ(records->size(), count);
    for (const BatchRecord& record : *records) {
      ASSERT_TRUE(record.follows() || std::uint64_t{record.begin} + record.bytes <= block.size());
    }
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace sirtaki::net
