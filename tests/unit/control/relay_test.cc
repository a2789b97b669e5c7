#include "runtime/control/relay.h"

#include <gtest/gtest.h>

#include "runtime/control/coordinator.h"
#include "tests/unit/control/ops.h"

namespace sirtaki::control {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kLastWordWait = std::chrono::seconds(5);

Announce announce(const std::string& name, std::int64_t dim = 2, std::uint64_t use = 0) {
  return {name, use, meta({dim})};
}

Waiting waiting(std::uint64_t progress, const std::string& name) {
  return {true, false, progress, {{WaitKind::kOp, name, 0, 5, "allreduce"}}};
}

// Four ranks, 8 to 11, each a child of its own.
class RelayTest : public testing::Test {
 protected:
  void say(Rank rank, MemberMessage message, Duration when = {}) {
    relay_.on_received({{RankSet::of(rank), std::move(message)}}, at(when));
  }
  std::vector<Bundle> up() { return relay_.take_actions().up; }

  Relay relay_{RankSet::range(8, 12), {RankSet::of(8), RankSet::of(9), RankSet::of(10), RankSet::of(11)}};
};

TEST_F(RelayTest, WhatAllRanksAnnounceAlikeGoesUpAsOneMessage) {
  for (const char* name : {"a", "b"}) {
    for (Rank r = 8; r < 12; ++r) {
      EXPECT_TRUE(up().empty());
      say(r, announce(name));
    }
    const auto bundles = up();
    ASSERT_EQ(bundles.size(), 1U);
    ASSERT_EQ(bundles[0].size(), 1U);
    EXPECT_EQ(bundles[0][0].ranks, RankSet::range(8, 12));
    EXPECT_EQ(std::get<Announce>(bundles[0][0].message).name, name);
  }
  EXPECT_FALSE(relay_.next_tick());
}

TEST_F(RelayTest, WhatAProcessSetAnnouncesWaitsForItsRanksAlone) {
  const std::string name = "a of ranks 2, 9, 10";
  say(9, announce(name));
  EXPECT_TRUE(up().empty());
  say(10, announce(name));
  const auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  EXPECT_EQ(bundles[0][0].ranks, RankSet::range(9, 11));
  EXPECT_FALSE(relay_.next_tick());
}

TEST_F(RelayTest, ManyNamesOfManyRanksAreOneBundle) {
  for (Rank r = 8; r < 12; ++r) {
    Bundle all;
    for (int n = 0; n < 50; ++n) {
      all.push_back({RankSet::of(r), announce("op" + std::to_string(n))});
    }
    relay_.on_received(std::move(all), at({}));
  }
  const auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  EXPECT_EQ(bundles[0].size(), 50U);
}

TEST_F(RelayTest, ALateRankDelaysTheOthersByTheLingerAndThenPassesAtOnce) {
  for (Rank r = 8; r < 11; ++r) {
    say(r, announce("a"), microseconds(100 * r));
  }
  ASSERT_EQ(relay_.next_tick(), at(milliseconds(2)));
  relay_.on_tick(at(microseconds(1999)));
  EXPECT_TRUE(up().empty());
  relay_.on_tick(at(milliseconds(2)));
  auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  EXPECT_EQ(bundles[0][0].ranks, RankSet::range(8, 11));
  say(11, announce("a"), std::chrono::seconds(3));
  bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  EXPECT_EQ(bundles[0][0].ranks, RankSet::of(11));
}

TEST_F(RelayTest, NewsThatKeepsComingIsOneBundleWithinABound) {
  // Each rank's names take longer to read than the linger; none is complete before the last has come.
  for (Rank r = 8; r < 12; ++r) {
    for (int n = 0; n < 20; ++n) {
      say(r, announce("op" + std::to_string(n)), microseconds((r - 8) * 2000 + n * 100));
      relay_.on_tick(at(microseconds((r - 8) * 2000 + n * 100)));
    }
  }
  auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  EXPECT_EQ(bundles[0].size(), 20U);
  for (int n = 0; n < 100; ++n) {
    say(8, announce("late" + std::to_string(n)), milliseconds(100) + microseconds(900 * n));
    EXPECT_LE(*relay_.next_tick(), at(milliseconds(150)));
  }
}

TEST_F(RelayTest, ReportsDoNotHoldUpNewsNorNewsReports) {
  say(8, waiting(1, "a"));
  say(8, announce("b"), milliseconds(1));
  EXPECT_EQ(relay_.next_tick(), at(milliseconds(2)));
  relay_.on_tick(at(milliseconds(2)));
  EXPECT_EQ(up().size(), 1U);
  EXPECT_FALSE(relay_.next_tick());
  say(8, waiting(2, "a"), milliseconds(10));
  for (int n = 0; n < 30; ++n) {
    say(8, announce("c" + std::to_string(n)), milliseconds(10) + microseconds(900 * n));
  }
  EXPECT_EQ(relay_.next_tick(), at(milliseconds(35)));
}

TEST_F(RelayTest, RanksThatDisagreeAreToldApart) {
  for (Rank r = 8; r < 12; ++r) {
    say(r, announce("a", r == 10 ? 3 : 2));
  }
  const auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  ASSERT_EQ(bundles[0].size(), 2U);
  EXPECT_EQ(bundles[0][0].ranks.to_string(), "ranks 8, 9, 11");
  EXPECT_EQ(bundles[0][1].ranks, RankSet::of(10));
}

TEST_F(RelayTest, FirstDimensionsThatMayDifferAreMerged) {
  for (Rank r = 8; r < 12; ++r) {
    say(r, Announce{"gathered", 0, meta({r, 5}, OpKind::kAllgather)});
  }
  const auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  EXPECT_EQ(bundles[0].size(), 1U);
}

TEST_F(RelayTest, ErrorsPassAtOnceWithAllThatWasSaidBeforeAndAreNotRepeated) {
  say(8, announce("a"));
  say(9, OpFailed{"a", 0, Status(Code::kTimeout, "slow")});
  const auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  ASSERT_EQ(bundles[0].size(), 2U);
  EXPECT_TRUE(std::holds_alternative<Announce>(bundles[0][0].message));
  EXPECT_TRUE(std::holds_alternative<OpFailed>(bundles[0][1].message));
  say(8, OpFailed{"a", 0, Status(Code::kTimeout, "slow")});
  EXPECT_TRUE(up().empty());
  say(8, OpFailed{"a", 1, Status(Code::kTimeout, "slow")});
  EXPECT_EQ(up().size(), 1U);
}

TEST_F(RelayTest, OneAbortAndOneRequestForFlagsOfAnAttempt) {
  const StreamId stream(7);
  say(8, StreamAbort{stream, 0, 5, Status(Code::kAborted, "first")});
  say(9, StreamAbort{stream, 0, 5, Status(Code::kAborted, "second")});
  EXPECT_EQ(up().size(), 1U);
  relay_.on_spread({{RankSet::range(0, 64), StreamAborted{stream, 2, 0, true, Status(Code::kAborted, "elsewhere")}}});
  say(10, StreamAbort{stream, 1, 0, Status(Code::kAborted, "void already")});
  EXPECT_TRUE(up().empty());
  say(10, StreamAbort{stream, 2, 0, Status(Code::kAborted, "third")});
  EXPECT_EQ(up().size(), 1U);

  say(8, StreamUnused{stream, 2, 1});
  say(9, StreamUnused{stream, 2, 1});
  EXPECT_EQ(up().size(), 1U);
  say(10, StreamUnused{stream, 1, 4});
  EXPECT_TRUE(up().empty());
  // The coordinator has not answered the one before if that attempt was void when it came.
  say(9, StreamUnused{stream, 3, 0});
  EXPECT_EQ(up().size(), 1U);
  // Another stream under the same number.
  relay_.on_spread({{RankSet::range(0, 64), StreamAgreed{"next", stream}}});
  say(9, StreamUnused{stream, 0, 1});
  say(9, StreamAbort{stream, 0, 0, Status(Code::kAborted, "again")});
  EXPECT_EQ(up().size(), 2U);
}

TEST_F(RelayTest, ReportsWaitForEachOtherAndTheNewestCounts) {
  say(8, waiting(1, "old"));
  say(8, waiting(2, "new"), milliseconds(3));
  say(9, waiting(2, "new"), milliseconds(4));
  say(10, waiting(9, "new"), milliseconds(5));
  EXPECT_TRUE(up().empty());
  relay_.on_tick(at(milliseconds(25)));
  const auto bundles = up();
  ASSERT_EQ(bundles.size(), 1U);
  ASSERT_EQ(bundles[0].size(), 2U);
  EXPECT_EQ(bundles[0][0].ranks, RankSet::range(8, 10));
  EXPECT_EQ(std::get<Waiting>(bundles[0][0].message).progress, 2U);
  EXPECT_EQ(bundles[0][1].ranks, RankSet::of(10));
}

TEST_F(RelayTest, NobodyWaitsForARankThatHasGone) {
  for (Rank r = 8; r < 11; ++r) {
    say(r, announce("a"));
  }
  relay_.on_gone(11, at({}));
  EXPECT_EQ(up().size(), 1U);
  for (Rank r = 8; r < 11; ++r) {
    say(r, announce("b"));
  }
  EXPECT_EQ(up().size(), 1U);
}

TEST_F(RelayTest, AnswersGoToTheChildrenTheyConcern) {
  relay_.on_spread({{RankSet::range(0, 64), Agreed{"a", 0, 1}}, {RankSet::range(11, 20), Recall{1, 4}}});
  const auto down = relay_.take_actions().down;
  ASSERT_EQ(down.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(down[i].first, i);
    ASSERT_EQ(down[i].second.size(), i == 3 ? 2U : 1U);
    EXPECT_EQ(down[i].second[0].ranks, RankSet::of(8 + static_cast<Rank>(i)));
  }
  relay_.on_spread({{RankSet::range(0, 8), Recall{1, 5}}});
  EXPECT_TRUE(relay_.take_actions().down.empty());
}

TEST_F(RelayTest, ABundleThatGrowsTooBigIsCut) {
  RelayOptions options;
  options.max_bytes = 1000;
  Relay relay(RankSet::range(0, 2), {RankSet::of(0), RankSet::of(1)}, options);
  Bundle all;
  for (int n = 0; n < 10; ++n) {
    all.push_back({RankSet::range(0, 2), announce(std::string(300, static_cast<char>('a' + n)))});
  }
  relay.on_received(std::move(all), at({}));
  const auto bundles = relay.take_actions().up;
  EXPECT_GE(bundles.size(), 4U);
  std::size_t items = 0;
  for (const Bundle& bundle : bundles) {
    items += bundle.size();
    EXPECT_LT(encode(bundle).size(), 1500U);
  }
  EXPECT_EQ(items, 10U);
}

// The error a user reads does not depend on how the announcements travelled.
TEST(RelayedCoordinator, NamesTheSameRanksAndValuesAsWithoutATree) {
  constexpr int kSize = 12;
  const auto said_by = [](Rank r) { return announce("layer1.weight", r == 5 || r == 10 ? 7 : 2); };
  Coordinator flat(kSize, {});
  for (Rank r = kSize - 1; r >= 0; --r) {
    flat.on_message(r, said_by(r), at({}));
  }
  Coordinator top(kSize, {}, kLastWordWait);
  for (const RelayPlace& place : plan_tree(kSize, 4)) {
    Relay relay(place.below, place.children);
    for (const Rank r : place.below.ranks()) {
      relay.on_received({{RankSet::of(r), said_by(r)}}, at({}));
    }
    for (const Bundle& bundle : relay.take_actions().up) {
      for (const SourcedMessage& item : bundle) {
        top.on_received(item.ranks, item.message, at({}));
      }
    }
  }
  const auto expected = flat.take_actions();
  const auto actual = top.take_actions();
  ASSERT_EQ(expected.sends.size(), 1U);
  ASSERT_EQ(actual.sends.size(), 1U);
  EXPECT_EQ(encode(actual.sends[0].message), encode(expected.sends[0].message));
  EXPECT_EQ(actual.sends[0].to, expected.sends[0].to);
}

TEST(RelayedCoordinator, ANoticeThatOvertakesTheLastWordWaitsForIt) {
  Coordinator c(2, {}, kLastWordWait);
  c.on_message(0, announce("a", 2, 2), at({}));
  c.on_left(1, at({}));
  EXPECT_TRUE(c.take_actions().sends.empty());
  c.on_message(1, Leaving{{{"a", 3}}}, at({}));
  const auto actions = c.take_actions();
  ASSERT_EQ(actions.sends.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Agreed>(actions.sends[0].message));
}

// A relay that ran out of time may have kept it, or the rank had no engine yet to send it.
TEST(RelayedCoordinator, ARankWhoseLastWordNeverComesHasLeftAllTheSame) {
  Coordinator c(2, {}, kLastWordWait);
  c.on_message(0, announce("a"), at({}));
  c.on_left(1, at({}));
  EXPECT_EQ(c.next_tick(), at(kLastWordWait));
  c.on_tick(at(kLastWordWait - milliseconds(1)));
  EXPECT_TRUE(c.take_actions().sends.empty());
  c.on_tick(at(kLastWordWait));
  const auto actions = c.take_actions();
  ASSERT_GE(actions.sends.size(), 1U);
  const auto* cancelled = std::get_if<OpCancelled>(&actions.sends[0].message);
  ASSERT_NE(cancelled, nullptr);
  EXPECT_EQ(cancelled->status.code(), Code::kPeerLost);
  EXPECT_EQ(cancelled->status.blame().rank, 1);
}

// Over the tree the news has one order with the agreements; on a connection of its own it would overtake them.
TEST(RelayedCoordinator, ALeaveIsToldBehindWhatWasAgreedBeforeIt) {
  Coordinator c(3, {}, kLastWordWait);
  c.on_received(RankSet::range(0, 3), Joined{}, at({}));
  c.on_received(RankSet::range(0, 2), Leaving{}, at({}));
  c.on_left(0, at({}));
  const auto agreed = c.take_actions().sends;
  ASSERT_EQ(agreed.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<AllJoined>(agreed[0].message));
  ASSERT_EQ(c.next_tick(), at(milliseconds(20)));
  c.on_tick(at(milliseconds(20)));
  const auto targeted = c.take_actions().sends;
  ASSERT_EQ(targeted.size(), 1U);
  EXPECT_EQ(targeted[0].to, RankSet::of(2));
  ASSERT_TRUE(std::holds_alternative<RanksLeft>(targeted[0].message));
  EXPECT_EQ(std::get<RanksLeft>(targeted[0].message).ranks, (std::vector<Rank>{0, 1}));
  EXPECT_EQ(c.next_tick(), std::nullopt);
}

TEST(Bundle, WireFormKeepsEverythingAndRefusesJunk) {
  const Bundle bundle{{RankSet::range(0, 5), announce("a")}, {RankSet::of(3), Leaving{{{"a", 1}}}}};
  const auto bytes = encode(bundle);
  const auto decoded = decode_bundle(bytes, 5);
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  ASSERT_EQ(decoded->size(), 2U);
  EXPECT_EQ(encode(*decoded), bytes);
  EXPECT_FALSE(decode_bundle(bytes, 4).ok()) << "rank 4 does not exist";
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_bundle(ConstBytes(bytes).first(cut), 5).ok()) << "cut at " << cut;
  }
  const auto parts = encode_parts(bundle, 1);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(encode_parts(bundle), std::vector<std::vector<std::byte>>(1, bytes));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto part = decode_bundle(parts[i], 5);
    ASSERT_TRUE(part.ok());
    ASSERT_EQ(part->size(), 1U);
    EXPECT_EQ(encode(part->front().message), encode(bundle[i].message));
  }
  EXPECT_TRUE(encode_parts(Spread()).empty());
  const Spread spread{{RankSet::of(2), Recall{7, 9}}};
  const auto targeted = decode_spread(encode(spread), 3);
  ASSERT_TRUE(targeted.ok());
  EXPECT_EQ(encode(*targeted), encode(spread));
}

}  // namespace
}  // namespace sirtaki::control
