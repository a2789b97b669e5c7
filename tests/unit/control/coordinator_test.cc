#include "runtime/control/coordinator.h"

#include <gtest/gtest.h>

#include "tests/unit/control/ops.h"

namespace sirtaki::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The messages of one kind among the actions.
template <class T>
std::vector<std::pair<RankSet, T>> sent(const Coordinator::Actions& actions) {
  std::vector<std::pair<RankSet, T>> found;
  for (const auto& send : actions.sends) {
    if (const T* message = std::get_if<T>(&send.message)) {
      found.emplace_back(send.to, *message);
    }
  }
  return found;
}

Waiting waiting(std::vector<std::string> names, bool blocked = true, std::uint64_t progress = 1) {
  Waiting report;
  report.blocked = blocked;
  report.progress = progress;
  for (std::string& name : names) {
    report.entries.push_back({WaitKind::kOp, std::move(name), 0, 5, "allreduce"});
  }
  return report;
}

TEST(Coordinator, AgreesWhenAllRanksHaveAnnouncedTheSame) {
  Coordinator c(3, {});
  c.on_message(0, Announce{"a", 0, meta({2})}, at(seconds(0)));
  c.on_message(2, Announce{"a", 0, meta({2})}, at(seconds(0)));
  EXPECT_TRUE(c.take_actions().sends.empty());
  c.on_message(1, Announce{"a", 0, meta({2})}, at(seconds(0)));
  const auto agreed = sent<Agreed>(c.take_actions());
  ASSERT_EQ(agreed.size(), 1U);
  EXPECT_EQ(agreed[0].first, RankSet::range(0, 3));
  EXPECT_EQ(agreed[0].second.use, 0U);
  EXPECT_NE(agreed[0].second.id, 0U);
}

TEST(Coordinator, MismatchNamesTensorRanksAndBothValues) {
  Coordinator c(3, {});
  for (Rank r = 0; r < 3; ++r) {
    c.on_message(
        r,
        Announce{"layer1.weight", 0, meta(r == 1 ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{2, 3})},
        at(seconds(0)));
  }
  const auto cancelled = sent<OpCancelled>(c.take_actions());
  ASSERT_EQ(cancelled.size(), 1U);
  const Status& status = cancelled[0].second.status;
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.blame().rank, 1);
  EXPECT_EQ(status.blame().tensor, "layer1.weight");
  EXPECT_TRUE(
      status.text().starts_with("tensor 'layer1.weight': the ranks disagree on shapes: [2, 3] on ranks 0, 2 but [3, 2] "
                                "on rank 1. Likely cause: different models, batch sizes or data on the ranks, or one "
                                "rank makes a call here that the others do not make"))
      << status.text();
}

TEST(Coordinator, CallsThatDifferInSeveralWaysAreDifferentCalls) {
  Coordinator c(2, {});
  OpMeta alone = meta({1});
  alone.dtype = DType::kF64;
  c.on_message(0, Announce{"torch.0.3", 0, alone}, at(seconds(0)));
  c.on_message(1, Announce{"torch.0.3", 0, meta({7})}, at(seconds(0)));
  const auto cancelled = sent<OpCancelled>(c.take_actions());
  ASSERT_EQ(cancelled.size(), 1U);
  const std::string_view text = cancelled[0].second.status.text();
  EXPECT_NE(text.find("disagree on data types: float64 on rank 0 but float32 on rank 1"), std::string_view::npos)
      << text;
  EXPECT_NE(text.find("evaluates alone"), std::string_view::npos) << text;
  EXPECT_EQ(text.find("a cast"), std::string_view::npos) << text;
}

TEST(Coordinator, ALaterAnnouncementRecallsTheOthersOnce) {
  Coordinator c(2, {});
  for (Rank r = 0; r < 2; ++r) {
    c.on_message(r, Announce{"a", 0, meta({2})}, at(seconds(0)));
  }
  const std::uint32_t id = sent<Agreed>(c.take_actions()).at(0).second.id;
  c.on_message(1, Announce{"a", 4, meta({9})}, at(seconds(0)));
  const auto recalls = sent<Recall>(c.take_actions());
  ASSERT_EQ(recalls.size(), 1U);
  EXPECT_EQ(recalls[0].first, RankSet::of(0));
  EXPECT_EQ(recalls[0].second.id, id);
  EXPECT_EQ(recalls[0].second.use, 4U);
  c.on_message(1, Announce{"a", 5, meta({2})}, at(seconds(0)));
  EXPECT_EQ(sent<Recall>(c.take_actions()).size(), 1U) << "use 4 is recalled already";
}

TEST(Coordinator, WhatIsSaidOfACancelledUseIsIgnored) {
  Coordinator c(2, {});
  c.on_message(0, OpFailed{"a", 3, Status(Code::kTimeout, "slow")}, at(seconds(0)));
  EXPECT_EQ(sent<OpCancelled>(c.take_actions()).size(), 1U);
  c.on_message(1, OpFailed{"a", 3, Status(Code::kTimeout, "slow")}, at(seconds(0)));
  c.on_message(1, Announce{"a", 3, meta({2})}, at(seconds(0)));
  EXPECT_TRUE(c.take_actions().sends.empty());
}

TEST(Coordinator, StreamsThatDifferAreRefusedNamingTheTensor) {
  Coordinator c(2, {});
  for (Rank r = 0; r < 2; ++r) {
    StreamOpen open;
    open.name = "opt";
    open.tensors = {{"w", r == 0 ? DType::kF32 : DType::kF16, DeviceType::kCpu, {4}, {}}};
    c.on_message(r, open, at(seconds(0)));
  }
  const auto refused = sent<StreamRefused>(c.take_actions());
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_NE(refused[0].second.status.text().find("data type of 'w'"), std::string_view::npos)
      << refused[0].second.status.text();
}

TEST(Coordinator, FlagsAskedForInAVoidAttemptAreAskedForAgain) {
  Coordinator c(2, {});
  for (Rank r = 0; r < 2; ++r) {
    StreamOpen open;
    open.name = "opt";
    c.on_message(r, open, at(seconds(0)));
  }
  const StreamId id = sent<StreamAgreed>(c.take_actions()).at(0).second.stream;
  c.on_message(0, StreamAbort{id, 0, 3, Status(Code::kAborted, "enough")}, at(seconds(0)));
  c.on_message(1, StreamUnused{id, 0, 3}, at(seconds(0)));
  EXPECT_TRUE(sent<StreamFlags>(c.take_actions()).empty());
  c.on_message(1, StreamUnused{id, 1, 0}, at(seconds(0)));
  c.on_message(0, StreamUnused{id, 1, 0}, at(seconds(0)));
  const auto flags = sent<StreamFlags>(c.take_actions());
  ASSERT_EQ(flags.size(), 1U);
  EXPECT_EQ(flags[0].second.attempt, 1U);
}

TEST(Coordinator, OneAbortOfAStepCounts) {
  Coordinator c(2, {});
  for (Rank r = 0; r < 2; ++r) {
    StreamOpen open;
    open.name = "opt";
    c.on_message(r, open, at(seconds(0)));
  }
  const StreamId id = sent<StreamAgreed>(c.take_actions()).at(0).second.stream;
  c.on_message(0, StreamAbort{id, 0, 7, Status(Code::kAborted, "first")}, at(seconds(0)));
  c.on_message(1, StreamAbort{id, 0, 7, Status(Code::kAborted, "second")}, at(seconds(0)));
  const auto aborted = sent<StreamAborted>(c.take_actions());
  ASSERT_EQ(aborted.size(), 1U);
  EXPECT_EQ(aborted[0].second.attempt, 1U);
  EXPECT_EQ(aborted[0].second.step, 7U);
  EXPECT_EQ(aborted[0].second.status.text(), "first");
}

TEST(Coordinator, StuckOnlyWhenNothingMovesForAWhile) {
  Coordinator c(2, {});
  c.on_message(0, waiting({"left"}), at(milliseconds(0)));
  c.on_message(1, waiting({"right"}), at(milliseconds(10)));
  ASSERT_TRUE(c.next_tick());
  c.on_message(1, waiting({"right"}, true, 2), at(milliseconds(900)));  // something moved
  c.on_tick(at(milliseconds(1100)));
  EXPECT_TRUE(sent<OpCancelled>(c.take_actions()).empty());
  c.on_tick(at(milliseconds(1901)));
  const auto cancelled = sent<OpCancelled>(c.take_actions());
  ASSERT_EQ(cancelled.size(), 2U);
  EXPECT_EQ(cancelled[0].second.status.code(), Code::kStuck);
  EXPECT_FALSE(cancelled[0].second.everywhere);
}

TEST(Coordinator, WhoCanGiveWayDoesSoBeforeTheJobIsStuck) {
  Coordinator c(3, {});
  const auto gives_way = [](Waiting report) {
    report.gives_way = true;
    return report;
  };
  c.on_message(0, gives_way(waiting({"left"})), at(milliseconds(0)));
  c.on_message(1, waiting({"right"}), at(milliseconds(0)));
  c.on_message(2, gives_way(waiting({"left"})), at(milliseconds(0)));
  c.on_tick(at(milliseconds(1001)));
  const auto actions = c.take_actions();
  EXPECT_TRUE(sent<OpCancelled>(actions).empty());
  const auto targeted = sent<GiveWay>(actions);
  ASSERT_EQ(targeted.size(), 1U);
  EXPECT_EQ(targeted[0].first.to_string(), "ranks 0, 2");
  // They wait again, and have to.
  c.on_message(0, waiting({"left"}, true, 2), at(milliseconds(1100)));
  c.on_message(2, waiting({"left"}, true, 2), at(milliseconds(1100)));
  c.on_tick(at(milliseconds(2000)));
  EXPECT_TRUE(sent<OpCancelled>(c.take_actions()).empty());
  c.on_tick(at(milliseconds(2101)));
  EXPECT_EQ(sent<OpCancelled>(c.take_actions()).size(), 2U);
}

TEST(Coordinator, NotStuckWhileARankComputesOrAnOperationIsSharedByAll) {
  Coordinator busy(2, {});
  busy.on_message(0, waiting({"left"}), at(seconds(0)));
  busy.on_message(1, waiting({"right"}, false), at(seconds(0)));
  busy.on_tick(at(seconds(30)));
  EXPECT_TRUE(sent<OpCancelled>(busy.take_actions()).empty());

  Coordinator shared(2, {});
  shared.on_message(0, waiting({"left", "both"}), at(seconds(0)));
  shared.on_message(1, waiting({"both", "right"}), at(seconds(0)));
  shared.on_tick(at(seconds(30)));
  EXPECT_TRUE(sent<OpCancelled>(shared.take_actions()).empty());
}

TEST(Coordinator, LateRanksAreNamedAfterAQuestion) {
  Coordinator c(3, {});
  c.on_message(0, waiting({"loss"}), at(seconds(0)));
  c.on_message(1, waiting({"loss"}), at(seconds(1)));
  c.on_tick(at(seconds(60)));
  EXPECT_EQ(sent<Query>(c.take_actions()).size(), 1U);
  c.on_message(2, waiting({}, false), at(seconds(60)));
  c.on_tick(at(seconds(61)));
  const auto actions = c.take_actions();
  ASSERT_EQ(actions.warnings.size(), 1U);
  EXPECT_EQ(actions.warnings[0],
            "ranks 0, 1 have waited 61 s for 'loss' (allreduce); rank 2 is alive but has not submitted it");
}

TEST(Coordinator, WhatNeedsARankThatLeftIsRefused) {
  Coordinator c(2, {});
  c.on_message(0, Announce{"a", 0, meta({2})}, at(seconds(0)));
  c.on_left(1, at(seconds(0)));
  const auto cancelled = sent<OpCancelled>(c.take_actions());
  ASSERT_EQ(cancelled.size(), 1U);
  EXPECT_EQ(cancelled[0].second.status.code(), Code::kPeerLost);
  c.on_message(0, Announce{"b", 0, meta({2})}, at(seconds(0)));
  EXPECT_EQ(sent<OpCancelled>(c.take_actions()).size(), 1U);
}

TEST(Coordinator, ARankThatSawAUseThroughMayLeaveBeforeTheOthersSubmitIt) {
  Coordinator c(2, {});
  c.on_message(1, Leaving{{{"a", 3}}}, at(seconds(0)));
  c.on_left(1, at(seconds(0)));
  c.on_message(0, Announce{"a", 2, meta({2})}, at(seconds(0)));
  EXPECT_EQ(sent<Agreed>(c.take_actions()).size(), 1U);
  c.on_message(0, Announce{"a", 3, meta({2})}, at(seconds(0)));
  EXPECT_EQ(sent<OpCancelled>(c.take_actions()).size(), 1U);
}

TEST(Coordinator, StreamsOfAProcessSetConcernItsRanksAlone) {
  const std::string name = "s of ranks 0, 2";
  Coordinator c(4, {});
  c.on_left(3, at(seconds(0)));
  c.on_message(0, StreamOpen{name, 7, ReduceOp::kSum, 1, 1, "none", {}}, at(seconds(0)));
  c.on_left(1, at(seconds(0)));
  EXPECT_TRUE(c.take_actions().sends.empty());
  c.on_message(2, StreamOpen{name, 7, ReduceOp::kSum, 1, 1, "none", {}}, at(seconds(0)));
  const auto agreed = sent<StreamAgreed>(c.take_actions());
  ASSERT_EQ(agreed.size(), 1U);
  EXPECT_EQ(agreed[0].first.to_string(), "ranks 0, 2");
  const StreamId stream = agreed[0].second.stream;
  c.on_message(2, StreamUnused{stream, 0, 0}, at(seconds(0)));
  const auto flags = sent<StreamFlags>(c.take_actions());
  ASSERT_EQ(flags.size(), 1U);
  EXPECT_EQ(flags[0].first.to_string(), "ranks 0, 2");
  c.on_message(0, StreamAbort{stream, 0, 0, {Code::kAborted, "why"}}, at(seconds(0)));
  const auto aborted = sent<StreamAborted>(c.take_actions());
  ASSERT_EQ(aborted.size(), 1U);
  EXPECT_EQ(aborted[0].first.to_string(), "ranks 0, 2");
}

TEST(Coordinator, AStreamOfAProcessSetIsRefusedForWantOfItsRanksAlone) {
  const std::string name = "s of ranks 0, 2";
  Coordinator c(3, {});
  c.on_message(0, StreamOpen{name, 7, ReduceOp::kSum, 1, 1, "none", {}}, at(seconds(0)));
  c.on_left(2, at(seconds(0)));
  const auto refused = sent<StreamRefused>(c.take_actions());
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].first.to_string(), "ranks 0, 2");
  EXPECT_EQ(refused[0].second.status.blame().rank, 2);
}

}  // namespace
}  // namespace sirtaki::control
