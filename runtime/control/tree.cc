#include "runtime/control/tree.h"

#include <algorithm>

namespace sirtaki::control {

std::vector<RelayPlace> plan_tree(int size, int fanout) {
  std::vector<RelayPlace> tree;
  if (fanout < 2 || size <= fanout) {
    return tree;
  }
  std::vector<RankSet> level;
  for (Rank r = 0; r < size; ++r) {
    level.push_back(RankSet::of(r));
  }
  std::size_t below = 0;  // index of the first relay of the level below
  for (int height = 0; static_cast<int>(level.size()) > fanout; ++height) {
    const std::size_t begin = tree.size();
    std::vector<RankSet> next;
    for (std::size_t i = 0; i < level.size(); i += static_cast<std::size_t>(fanout)) {
      const std::size_t end = std::min(level.size(), i + static_cast<std::size_t>(fanout));
      RelayPlace place;
      for (std::size_t child = i; child < end; ++child) {
        place.below.add(level[child]);
        place.children.push_back(level[child]);
        if (height > 0) {
          tree[below + child].parent = static_cast<int>(tree.size());
        }
      }
      // Levels use different ranks, so that no process runs several relays while there are enough ranks.
      place.host = std::min(place.below.front() + height, place.below.ranges().back().last - 1);
      next.push_back(place.below);
      tree.push_back(std::move(place));
    }
    below = begin;
    level = std::move(next);
  }
  return tree;
}

}  // namespace sirtaki::control
