#include "runtime/control/scope.h"

#include <gtest/gtest.h>

#include <random>

namespace sirtaki::control {
namespace {

TEST(Scope, IsReadBackFromTheName) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 500; ++i) {
    RankSet ranks;
    for (Rank r = 0; r < 24; ++r) {
      if (random() % 3 != 0) {
        ranks.add(r);
      }
    }
    if (ranks.empty()) {
      continue;
    }
    for (const char* name : {"grad", "", "mean of ranks 1, 2", "of ranks"}) {
      const std::string scoped = scoped_name(name, ranks);
      EXPECT_EQ(scope_of(scoped, 24), ranks) << scoped;
      EXPECT_TRUE(has_scope(scoped)) << scoped;
    }
  }
}

TEST(Scope, OtherNamesAreForAll) {
  for (const char* name :
       {"", "grad", "sum of ranks", "sum of ranks ", "sum of ranks 1,2", "sum of ranks 3-1", "sum of rank x",
        "sum of ranks 1, ", "sum of ranks -1", "sum of ranks 99999999999", "layer of rankings 1",
        "sum of ranks 1, 2.weight", "sum of ranks 2, 1", "sum of rank 1, 2", "sum of ranks 0-1"}) {
    EXPECT_EQ(scope_of(name, 4), RankSet::range(0, 4)) << name;
    EXPECT_FALSE(has_scope(name)) << name;
  }
}

TEST(Scope, RanksThatAJobDoesNotHaveAreNoScope) {
  EXPECT_EQ(scope_of("grad of ranks 2, 4", 4), RankSet::range(0, 4));
  EXPECT_TRUE(has_scope("grad of ranks 2, 4"));
}

}  // namespace
}  // namespace sirtaki::control
