#include "runtime/control/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace sirtaki::control {
namespace {

TEST(Tree, FewRanksNeedNone) {
  EXPECT_TRUE(plan_tree(8, 0).empty());
  EXPECT_TRUE(plan_tree(8, 1).empty());
  EXPECT_TRUE(plan_tree(32, 32).empty());
}

TEST(Tree, NobodyHasMoreChildrenThanTheFanOutAndEveryRankIsBelowOneRelayOfEachLevel) {
  for (const int fanout : {2, 3, 16, 32}) {
    for (int size = fanout + 1; size < 1100; size = size * 2 - 1) {
      const auto tree = plan_tree(size, fanout);
      int top = 0;
      for (std::size_t i = 0; i < tree.size(); ++i) {
        const RelayPlace& place = tree[i];
        const std::string which =
            std::to_string(size) + " by " + std::to_string(fanout) + ", relay " + std::to_string(i);
        EXPECT_LE(static_cast<int>(place.children.size()), fanout) << which;
        EXPECT_TRUE(place.below.contains(place.host)) << which;
        RankSet all;
        for (const RankSet& child : place.children) {
          EXPECT_TRUE(all.common(child).empty()) << which;
          all.add(child);
        }
        EXPECT_EQ(all, place.below) << which;
        if (place.parent < 0) {
          ++top;
          continue;
        }
        ASSERT_GT(place.parent, static_cast<int>(i)) << which;
        const auto& siblings = tree[static_cast<std::size_t>(place.parent)].children;
        EXPECT_NE(std::find(siblings.begin(), siblings.end(), place.below), siblings.end()) << which;
      }
      EXPECT_GT(top, 1);
      EXPECT_LE(top, fanout);
      for (Rank r = 0; r < size; ++r) {
        EXPECT_TRUE(tree[static_cast<std::size_t>(r / fanout)].below.contains(r)) << size << " by " << fanout;
      }
    }
  }
}

}  // namespace
}  // namespace sirtaki::control
