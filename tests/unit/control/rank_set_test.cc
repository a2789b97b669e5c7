#include "runtime/control/rank_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace sirtaki::control {
namespace {

RankSet set_of(const std::set<Rank>& ranks) {
  RankSet set;
  for (const Rank r : ranks) {
    set.add(r);
  }
  return set;
}

std::set<Rank> drawn(std::mt19937_64& random) {
  std::set<Rank> ranks;
  for (Rank r = 0; r < 24; ++r) {
    if (random() % 2 == 0) {
      ranks.insert(r);
    }
  }
  return ranks;
}

TEST(RankSet, BehavesAsASetOfIntegers) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    const std::set<Rank> a = drawn(random);
    const std::set<Rank> b = drawn(random);
    std::set<Rank> both = a;
    both.insert(b.begin(), b.end());
    std::set<Rank> rest;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(rest, rest.end()));
    std::set<Rank> common;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(common, common.end()));
    RankSet sum = set_of(a);
    sum.add(set_of(b));
    EXPECT_EQ(sum, set_of(both)) << "draw " << i;
    EXPECT_EQ(sum.size(), static_cast<int>(both.size()));
    EXPECT_EQ(sum.ranks(), std::vector<Rank>(both.begin(), both.end()));
    EXPECT_EQ(set_of(a).without(set_of(b)), set_of(rest)) << "draw " << i;
    EXPECT_EQ(set_of(a).common(set_of(b)), set_of(common)) << "draw " << i;
    EXPECT_EQ(set_of(a).contains(set_of(b)), std::includes(a.begin(), a.end(), b.begin(), b.end()));
    for (Rank r = 0; r < 25; ++r) {
      EXPECT_EQ(sum.contains(r), both.contains(r)) << "draw " << i << ", rank " << r;
    }
  }
}

TEST(RankSet, NeighboursAreOneRange) {
  RankSet set = RankSet::range(0, 512);
  set.add(RankSet::range(512, 1024));
  EXPECT_EQ(set.ranges().size(), 1U);
  EXPECT_EQ(set.size(), 1024);
}

TEST(RankSet, TextListsFewAndShortensRuns) {
  EXPECT_EQ(RankSet::of(4).to_string(), "rank 4");
  EXPECT_EQ(set_of({0, 2, 3}).to_string(), "ranks 0, 2, 3");
  RankSet many = RankSet::range(0, 1023);
  many.remove(RankSet::of(7));
  EXPECT_EQ(many.to_string(), "ranks 0-6, 8-1022");
}

TEST(RankSet, WireFormKeepsTheSetAndRefusesRanksThatDoNotExist) {
  const RankSet set = set_of({0, 1, 2, 9});
  WireWriter w;
  put(w, set);
  WireReader good(w.bytes());
  EXPECT_EQ(get_ranks(good, 10), set);
  EXPECT_TRUE(good.finish("a set").ok());
  WireReader bad(w.bytes());
  (void)get_ranks(bad, 9);
  EXPECT_FALSE(bad.ok());
}

}  // namespace
}  // namespace sirtaki::control
