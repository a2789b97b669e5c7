#include "scheduler/policies/lasting_link.h"

#include <gtest/gtest.h>

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kProbe = 12'500'000;
constexpr std::int64_t kBurst = 40'000'000;
constexpr std::int64_t kSmall = 100'000;

TEST(LastingLink, ReadingsCountForPayloadsUpToTwiceAsLarge) {
  const LastingLink link(kProbe);
  EXPECT_EQ(link.rate(2 * kSmall, kBurst, kSmall), kBurst);
  EXPECT_EQ(link.rate(2 * kSmall + 1, kBurst, kSmall), kProbe);
  EXPECT_EQ(link.rate(8 * kSmall, kProbe / 2, kSmall), kProbe / 2) << "a slower link is believed";
  EXPECT_EQ(link.rate(1 << 30, kBurst, LastingLink::kBeyondBurst), kBurst);
  EXPECT_EQ(LastingLink().rate(8 * kSmall, kBurst, kSmall), kBurst) << "nothing was measured before";
}

TEST(LastingLink, LargePayloadsShowWhatLasts) {
  LastingLink link(kProbe);
  for (int i = 0; i < 20; ++i) {
    link.shown(kBurst, kSmall, false);
  }
  EXPECT_EQ(link.rate(8 * kSmall, kBurst, kSmall), kProbe);
  link.shown(kBurst, LastingLink::kBeyondBurst, false);
  EXPECT_EQ(link.rate(8 * kSmall, kBurst, kSmall), kBurst);
  LastingLink small(kProbe);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(small.rate(8 * kSmall, kBurst, kSmall), kProbe) << i;
    small.shown(kBurst, 8 * kSmall, true);
  }
  EXPECT_EQ(small.rate(8 * kSmall, kBurst, kSmall), kBurst) << "its largest payload";
}

TEST(LastingLink, TrialsShowWhatItCarries) {
  LastingLink link(kProbe);
  link.carried(8 * kSmall);
  EXPECT_EQ(link.rate(8 * kSmall, kBurst, kSmall), kBurst);
  EXPECT_EQ(link.rate(8 * kSmall + 1, kBurst, kSmall), kProbe);
  link.failed(kProbe / 2);
  EXPECT_EQ(link.rate(8 * kSmall, kBurst, kSmall), kProbe / 2);
}

}  // namespace
}  // namespace sirtaki::scheduler
