// TagGroup: membership, and cancelling and forgetting messages of a group.
#include "runtime/net/link/tag_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/net/link/tag_table.h"
#include "runtime/net/link/tombstones.h"
#include "tests/unit/net/tcp/channel_pair.h"

namespace sirtaki::net::testing {
namespace {

const Status kCause(Code::kAborted, "first");

// A group of the tags from 0x10 to 0x1f, and of tags that differ from these in higher bits only.
constexpr TagGroup kTens(OpTag(0x1a), 0xf0);

TEST(TagGroup, HoldsWhatAgreesInTheBitsOfItsMask) {
  EXPECT_TRUE(kTens.contains(OpTag(0x10)));
  EXPECT_TRUE(kTens.contains(OpTag(0x1f)));
  EXPECT_TRUE(kTens.contains(OpTag(0x71f)));
  EXPECT_FALSE(kTens.contains(OpTag(0x20)));
  const TagGroup one = OpTag(0x13);
  EXPECT_TRUE(one.single());
  EXPECT_TRUE(one.contains(OpTag(0x13)));
  EXPECT_FALSE(one.contains(OpTag(0x12)));
  EXPECT_TRUE(kTens.contains(one));
  EXPECT_FALSE(one.contains(kTens));
  EXPECT_FALSE(kTens.contains(TagGroup(OpTag(0x20))));
}

TEST(Tombstones, KeepTheFirstCauseOfEveryTagOfAGroup) {
  Tombstones tombstones;
  EXPECT_TRUE(tombstones.add(OpTag(0x15), {Code::kTimeout, "early"}));
  EXPECT_TRUE(tombstones.add(kTens, kCause));
  EXPECT_FALSE(tombstones.add(OpTag(0x17), {Code::kTimeout, "late"}));
  EXPECT_FALSE(tombstones.add(kTens, {Code::kTimeout, "late"}));
  ASSERT_NE(tombstones.find(OpTag(0x17)), nullptr);
  EXPECT_EQ(tombstones.find(OpTag(0x17))->text(), "first");
  EXPECT_EQ(tombstones.find(OpTag(0x20)), nullptr);
  EXPECT_EQ(tombstones.size(), 2U);
}

TEST(Tombstones, ForgetWhatIsWhollyInAGroup) {
  Tombstones tombstones;
  tombstones.add(OpTag(0x15), kCause);
  tombstones.add(OpTag(0x25), kCause);
  tombstones.add(TagGroup(OpTag(0x5), 0xf), kCause);
  tombstones.forget(kTens);
  EXPECT_EQ(tombstones.size(), 2U);
  EXPECT_NE(tombstones.find(OpTag(0x15)), nullptr) << "by the last group, which holds other tags too";
  EXPECT_EQ(tombstones.find(OpTag(0x16)), nullptr);
  tombstones.forget(TagGroup(OpTag(0), 0));
  EXPECT_TRUE(tombstones.empty());
  EXPECT_EQ(tombstones.find(OpTag(0x25)), nullptr);
}

TEST(Tombstones, TheOldestIsForgottenFirst) {
  Tombstones tombstones;
  tombstones.add(TagGroup(OpTag(1), 1), kCause);
  for (std::uint64_t i = 0; i < Tombstones::kCapacity; ++i) {
    tombstones.add(OpTag(2 * i), kCause);
  }
  EXPECT_EQ(tombstones.size(), Tombstones::kCapacity);
  EXPECT_EQ(tombstones.find(OpTag(1)), nullptr);
  EXPECT_NE(tombstones.find(OpTag(0)), nullptr);
}

TEST(TagTable, GivesAllEntriesOfAGroup) {
  TagTable<int> table;
  table.push(OpTag(0x11), 0, 1);
  table.push(OpTag(0x11), 1, 2);
  table.push(OpTag(0x12), 0, 3);
  table.push(OpTag(0x21), 0, 4);
  std::vector<int> taken = table.take_tags(kTens);
  std::ranges::sort(taken);
  EXPECT_EQ(taken, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.take_tags(OpTag(0x21)), std::vector<int>{4});
  EXPECT_TRUE(table.empty());
}

Envelope envelope(std::uint64_t tag) {
  return {1, OpTag(tag), 0, 0, 0};
}

// Every message of the group ends, and no other: large and small ones, on both sides, begun or not.
TEST(Channel, CancelEndsAllMessagesOfAGroup) {
  ChannelLimits limits;
  limits.eager_bytes = 100;
  ChannelPair pair(limits);
  const auto large = pattern(100'000, 1);
  const auto small = pattern(50, 2);
  std::vector<std::byte> out(large.size());
  std::vector<std::byte> other(large.size());
  Outcome waiting;
  Outcome posted;
  Outcome kept_out;
  Outcome kept_in;
  pair.a.channel->send(envelope(0x11), large, waiting.done());
  pair.a.channel->send(envelope(0x12), small, [](const Status&) {});
  pair.a.channel->recv(envelope(0x13), out, posted.done());
  pair.a.channel->send(envelope(0x21), large, kept_out.done());
  pair.settle();
  pair.a.cancel(kTens);
  pair.b.cancel(kTens);
  pair.settle();
  EXPECT_TRUE(waiting.failed(Code::kAborted));
  EXPECT_TRUE(posted.failed(Code::kAborted));
  pair.b.channel->recv({0, OpTag(0x21), 0, 0, 0}, other, kept_in.done());
  pair.settle();
  EXPECT_TRUE(kept_out.ok());
  EXPECT_TRUE(kept_in.ok());
  EXPECT_EQ(other, large);
  EXPECT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
}

}  // namespace
}  // namespace sirtaki::net::testing
