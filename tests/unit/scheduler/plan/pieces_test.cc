#include "scheduler/plan/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sirtaki::scheduler {
namespace {

TEST(Pieces, CoverTheTensorInNearlyEqualParts) {
  for (const std::int64_t stripe : {1, 1000, 4096}) {
    for (const std::int64_t numel : {1, 63, 64, 65, 1000, 4096, 100'000, 100'001}) {
      for (const std::int64_t most : {1, 64, 1000, 30'000, 1 << 20}) {
        PlannedTensor tensor{"w", numel};
        tensor.stripe = stripe;
        const std::int64_t border = stripe > 1 ? stripe : 64;
        const Pieces pieces(tensor, 3, 64, most);
        std::int64_t end = 0;
        std::vector<std::int64_t> lengths;
        for (std::int64_t i = 0; i < pieces.count(); ++i) {
          const Slice slice = pieces.slice(i);
          EXPECT_EQ(slice.tensor, 3);
          EXPECT_EQ(slice.offset, end);
          EXPECT_EQ(slice.offset % border, 0);
          EXPECT_LE(slice.numel, std::max(most, border));
          end += slice.numel;
          lengths.push_back(slice.numel);
        }
        EXPECT_EQ(end, numel);
        const auto [least, largest] = std::ranges::minmax(lengths);
        EXPECT_LE(largest - least, 2 * border) << numel << " by " << most;
      }
    }
  }
}

}  // namespace
}  // namespace sirtaki::scheduler
