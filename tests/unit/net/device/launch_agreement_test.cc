// The agreement of the ranks of process sets, as rank 0 conducts it.
#include "runtime/net/device/launch_agreement.h"

#include <gtest/gtest.h>

namespace sirtaki::net {
namespace {

using Says = LaunchWord::Kind;
using Answers = LaunchAgreement::Answers;

constexpr int kRanks = 130;
constexpr LaunchSet kSet = kFirstProcessSet;

class LaunchAgreementTest : public ::testing::Test {
 protected:
  Status take(Rank from, LaunchWord word) { return agreement_.take(from, word, order_); }
  // Ranks 1 and 129 ask for their set, which each of them calls by another number.
  void ask(Rank from, int version) {
    const auto own = static_cast<LaunchSet>(from + 1000);
    ASSERT_TRUE(take(from, {Says::kRanks, OpTag(2), 0, own}).ok());
    ASSERT_TRUE(take(from, {Says::kRanks, OpTag(2), 2, own}).ok());
    ASSERT_TRUE(take(from, {Says::kAble, OpTag(), version, own}).ok());
  }
  // Rank 129 cannot connect, and the result of rank 1 comes later.
  void expect_refusal_before(std::int32_t late) {
    ask(1, 22809);
    ask(129, 22809);
    EXPECT_TRUE(take(129, {Says::kConnected, OpTag(), 0, kSet}).ok());
    EXPECT_EQ(agreement_.take_answers(), to_both(Says::kRefused, 129, 22809)) << "rank 1 still tries";
    EXPECT_TRUE(take(1, {Says::kConnected, OpTag(), late, kSet}).ok()) << "on its way meanwhile";
    EXPECT_TRUE(agreement_.take_answers().empty());
    EXPECT_EQ(take(1, {Says::kConnected, OpTag(), late, kSet}).code(), Code::kCorrupt) << "twice";
  }
  // Returns a word of rank 0 to both ranks of the set.
  static Answers to_both(Says kind, std::int32_t number = 0, std::uint64_t bytes = 0) {
    return {{1, {kind, OpTag(1001), number, kSet, bytes}}, {129, {kind, OpTag(1129), number, kSet, bytes}}};
  }

  LaunchSequencer order_{kRanks};
  LaunchAgreement agreement_{kRanks};
};

TEST_F(LaunchAgreementTest, ASetIsOpenWhenAllAreAbleAndConnected) {
  ask(129, 22809);
  EXPECT_TRUE(order_.take().empty());
  ask(1, 22809);
  EXPECT_EQ(order_.ranks_of(kSet), (std::vector<Rank>{1, 129}));
  EXPECT_EQ(order_.take(), (std::vector<LaunchNotice>{{LaunchNotice::Kind::kConnect, OpTag(), kSet}}));
  EXPECT_EQ(agreement_.connect_word(kSet, 129), (LaunchWord{Says::kConnect, OpTag(1129), 0, kSet}));
  EXPECT_TRUE(take(1, {Says::kConnected, OpTag(), 1, kSet}).ok());
  EXPECT_TRUE(agreement_.take_answers().empty());
  EXPECT_TRUE(take(129, {Says::kConnected, OpTag(), 1, kSet}).ok());
  EXPECT_EQ(agreement_.take_answers(), to_both(Says::kOpen));
  EXPECT_TRUE(agreement_.take_answers().empty()) << "once";
}

TEST_F(LaunchAgreementTest, ARankThatIsNotAbleRefusesForAll) {
  ask(129, 0);
  EXPECT_EQ(agreement_.take_answers(), (Answers{{129, {Says::kRefused, OpTag(1129), 129, kSet, 0}}}));
  ask(1, 22809);
  EXPECT_EQ(agreement_.take_answers(), (Answers{{1, {Says::kRefused, OpTag(1001), 129, kSet, 0}}}));
  EXPECT_TRUE(order_.take().empty());
}

TEST_F(LaunchAgreementTest, AnotherVersionRefuses) {
  ask(129, 22809);
  ask(1, 21801);
  EXPECT_EQ(agreement_.take_answers(), to_both(Says::kRefused, 1, 21801));
  EXPECT_TRUE(order_.take().empty());
}

TEST_F(LaunchAgreementTest, ARankThatCannotConnectRefusesForAll) {
  expect_refusal_before(0);
}

TEST_F(LaunchAgreementTest, ARankMayConnectWhileAnotherOneCannot) {
  expect_refusal_before(1);
}

TEST_F(LaunchAgreementTest, ASetThatIsRefusedBeforeItConnectsDoesNotConnect) {
  ask(129, 22809);
  ask(1, 21801);
  EXPECT_EQ(take(129, {Says::kConnected, OpTag(), 1, kSet}).code(), Code::kCorrupt);
  EXPECT_EQ(take(1, {Says::kConnected, OpTag(), 0, kSet}).code(), Code::kCorrupt);
}

TEST_F(LaunchAgreementTest, ASetWithALostRankIsToldSo) {
  ask(1, 22809);
  order_.lose(1);
  ask(129, 22809);
  EXPECT_EQ(agreement_.take_answers(), (Answers{{129, {Says::kGone, OpTag(), 1}}}));
  EXPECT_TRUE(order_.take().empty());
}

TEST_F(LaunchAgreementTest, WordsOutOfPlaceAreRejected) {
  const auto corrupt = [this](Rank from, const LaunchWord& word) { return take(from, word).code() == Code::kCorrupt; };
  EXPECT_TRUE(corrupt(1, {Says::kAble, OpTag(), 1, 7})) << "ranks are named first";
  ASSERT_TRUE(take(1, {Says::kRanks, OpTag(4), 0, 7}).ok());
  EXPECT_TRUE(corrupt(1, {Says::kRanks, OpTag(4), 0, 7})) << "ranks ascend";
  EXPECT_TRUE(corrupt(1, {Says::kRanks, OpTag(4), 1, 8})) << "of one set";
  EXPECT_TRUE(corrupt(1, {Says::kAble, OpTag(), 1, 7})) << "rank 1 is not in it";
  EXPECT_TRUE(corrupt(4, {Says::kRanks, OpTag(4), 2, 7})) << "rank 130 does not exist";
  EXPECT_TRUE(corrupt(2, {Says::kRanks, OpTag(1), 1 << 30, 7}));
  EXPECT_TRUE(corrupt(3, {Says::kConnected, OpTag(), 1, kSet})) << "nothing to connect";
  ask(129, 22809);
  ask(1, 22809);
  EXPECT_TRUE(corrupt(3, {Says::kConnected, OpTag(), 1, kSet})) << "a set of others";
  EXPECT_TRUE(take(1, {Says::kConnected, OpTag(), 1, kSet}).ok());
  EXPECT_TRUE(corrupt(1, {Says::kConnected, OpTag(), 1, kSet})) << "twice";
}

TEST_F(LaunchAgreementTest, ARankAsksOnce) {
  ask(1, 22809);
  ASSERT_TRUE(take(1, {Says::kRanks, OpTag(2), 0, 9}).ok());
  ASSERT_TRUE(take(1, {Says::kRanks, OpTag(2), 2, 9}).ok());
  EXPECT_EQ(take(1, {Says::kAble, OpTag(), 22809, 9}).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace sirtaki::net
