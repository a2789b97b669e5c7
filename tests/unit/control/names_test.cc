#include "runtime/control/names.h"

#include <gtest/gtest.h>

#include "tests/unit/control/ops.h"

namespace sirtaki::control {
namespace {

TEST(Names, FirstUseIsAnnouncedAndLaterUsesStartAtOnce) {
  Names names;
  const auto first = names.submit("a", meta({2}));
  EXPECT_EQ(first.use, 0U);
  EXPECT_FALSE(first.start_id);
  ASSERT_TRUE(first.announce);
  const auto start = names.on_agreed({"a", 0, 7});
  ASSERT_TRUE(start);
  EXPECT_EQ(start->id, 7U);
  names.finished("a", 0);
  const auto second = names.submit("a", meta({2}));
  EXPECT_EQ(second.use, 1U);
  EXPECT_EQ(second.start_id, 7U);
  EXPECT_FALSE(second.announce);
}

TEST(Names, AnotherShapeIsAnnouncedAgain) {
  Names names;
  (void)names.submit("a", meta({2}));
  (void)names.on_agreed({"a", 0, 7});
  const auto other = names.submit("a", meta({3}));
  EXPECT_TRUE(other.announce);
  EXPECT_FALSE(other.start_id);
}

TEST(Names, ManyShapesOfANameStayKnown) {
  constexpr std::int64_t kShapes = 32;
  Names names;
  for (std::int64_t use = 0; use < kShapes; ++use) {
    (void)names.submit("a", meta({use + 1}));
    (void)names.on_agreed({"a", static_cast<std::uint64_t>(use), 7});
    names.finished("a", static_cast<std::uint64_t>(use));
  }
  for (std::int64_t shape = kShapes; shape >= 1; --shape) {
    EXPECT_TRUE(names.submit("a", meta({shape})).start_id) << shape;
  }
}

TEST(Names, AnotherFirstDimensionOfAnAllgatherIsNotAnotherShape) {
  Names names;
  (void)names.submit("a", meta({2, 5}, OpKind::kAllgather));
  (void)names.on_agreed({"a", 0, 7});
  EXPECT_TRUE(names.submit("a", meta({9, 5}, OpKind::kAllgather)).start_id);
  EXPECT_FALSE(names.submit("a", meta({9, 6}, OpKind::kAllgather)).start_id);
}

TEST(Names, ABroadcastWhoseRootVariesIsAnnouncedInEveryUse) {
  Names names;
  std::uint64_t use = 0;
  const auto broadcast = [&](Rank root) {
    OpMeta m = meta({2}, OpKind::kBroadcast);
    m.root = root;
    const bool at_once = names.submit("a", m).start_id.has_value();
    (void)names.on_agreed({"a", use, 7});
    names.finished("a", use++);
    return at_once;
  };
  EXPECT_FALSE(broadcast(0));
  EXPECT_TRUE(broadcast(0));
  EXPECT_FALSE(broadcast(1));
  EXPECT_FALSE(broadcast(1)) << "each rank could be the root of its own, and end well";
  EXPECT_FALSE(broadcast(0));
}

TEST(Names, RecallOfAStartedUseAnnouncesItAndAgreementDoesNotStartItTwice) {
  Names names;
  (void)names.submit("a", meta({2}));
  (void)names.on_agreed({"a", 0, 7});
  (void)names.submit("a", meta({2}));
  const auto announce = names.on_recall({7, 1});
  ASSERT_TRUE(announce);
  EXPECT_EQ(announce->use, 1U);
  EXPECT_FALSE(names.on_agreed({"a", 1, 7}));
}

TEST(Names, RecallBeforeTheUseComesMakesItAnnounce) {
  Names names;
  (void)names.submit("a", meta({2}));
  (void)names.on_agreed({"a", 0, 7});
  EXPECT_FALSE(names.on_recall({7, 1}));
  const auto recalled = names.submit("a", meta({2}));
  EXPECT_TRUE(recalled.announce);
  EXPECT_FALSE(recalled.start_id);
  EXPECT_TRUE(names.submit("a", meta({2})).start_id) << "only the recalled use is announced";
}

TEST(Names, RecallOfAUseThatIsOverAnswersWithWhatItWas) {
  Names names;
  (void)names.submit("a", meta({4}));
  (void)names.on_agreed({"a", 0, 7});
  (void)names.submit("a", meta({4}));
  names.finished("a", 1);
  const auto announce = names.on_recall({7, 1});
  ASSERT_TRUE(announce);
  EXPECT_EQ(announce->meta.dims, std::vector<std::int64_t>{4});
}

TEST(Names, WhatHasBegunWithoutAWordIsAnnouncedWhenSomeHaveJoined) {
  Names names;
  for (std::uint64_t use = 0; use < 3; ++use) {
    (void)names.submit("a", meta({2}));
    (void)names.on_agreed({"a", 0, 7});
  }
  names.finished("a", 1);  // as a broadcast's root does
  const auto announces = names.on_some_joined({{1}, {{"a", 1}}}, 3);
  ASSERT_EQ(announces.size(), 2U);
  EXPECT_EQ(announces[0].use, 1U);
  EXPECT_EQ(announces[1].use, 2U);
  EXPECT_FALSE(names.on_recall({7, 2})) << "announced already";
  EXPECT_TRUE(names.submit("a", meta({2})).announce);
  names.on_all_joined();
  EXPECT_TRUE(names.submit("a", meta({2})).start_id);
}

TEST(Names, ARankThatStandsInCountsTheUse) {
  Names names;
  EXPECT_TRUE(names.contribute_zeros({"a", 5, meta({2})}));
  EXPECT_FALSE(names.contribute_zeros({"a", 5, meta({2})}));
  EXPECT_TRUE(names.on_agreed({"a", 5, 7}));
  names.finished("a", 5);
  EXPECT_EQ(names.submit("a", meta({2})).use, 6U);
}

TEST(Names, CancelledUseInFlightEndsAndTheNameGoesOn) {
  Names names;
  (void)names.submit("a", meta({2}));
  EXPECT_TRUE(names.on_cancelled({"a", 0, true, Status(Code::kMismatch, "no")}));
  names.finished("a", 0);
  EXPECT_EQ(names.submit("a", meta({2})).use, 1U);
}

TEST(Names, UseThatFailedEverywhereFailsWhenItComes) {
  Names names;
  EXPECT_FALSE(names.on_cancelled({"a", 0, true, Status(Code::kPeerLost, "gone")}));
  const auto late = names.submit("a", meta({2}));
  EXPECT_EQ(late.failed.code(), Code::kPeerLost);
  EXPECT_FALSE(late.announce);
  EXPECT_TRUE(names.submit("a", meta({2})).failed.ok());
}

TEST(Names, UseThatMayNeverComeIsSkipped) {
  Names names;
  EXPECT_FALSE(names.on_cancelled({"a", 3, false, Status(Code::kStuck, "stuck")}));
  EXPECT_EQ(names.submit("a", meta({2})).use, 4U);
}

TEST(OpMeta, FingerprintsOfWhatCannotRunTogetherDiffer) {
  const OpMeta base = meta({2, 3});
  OpMeta other = meta({3, 2});
  EXPECT_NE(base.fingerprint(), other.fingerprint());
  other = base;
  other.dtype = DType::kI32;
  EXPECT_NE(base.fingerprint(), other.fingerprint());
  other = base;
  other.reduce_op = ReduceOp::kMax;
  EXPECT_NE(base.fingerprint(), other.fingerprint());
  other = base;
  other.strides = {1, 2};
  EXPECT_NE(base.fingerprint(), other.fingerprint());
}

}  // namespace
}  // namespace sirtaki::control
