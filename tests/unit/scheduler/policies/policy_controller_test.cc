#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "scheduler/replanner.h"
#include "tests/unit/scheduler/policies/link_policy_test.h"

namespace sirtaki::scheduler {
namespace {

class PolicyControllerTest : public LinkPolicyTest {};

TEST_F(PolicyControllerTest, RefusesTwoPoliciesThatChange) {
  const PlainFacts facts(4);
  const auto choices =
      decide(*parse_spec("a=>auto;*=>importance"), {{"a", {64, 64}}, {"b", {64, 64}}}, {.ranks = 4}, facts);
  ASSERT_FALSE(choices);
  EXPECT_NE(choices.status().text().find("both auto and importance"), std::string_view::npos);
}

TEST_F(PolicyControllerTest, TheReplannerProposesWhatItsControllerWants) {
  const Spec spec = *parse_spec("auto");
  std::vector<int> order(infos_.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int>(order.size() - 1 - i);
  }
  const auto first = Plan::build(*decide(spec, infos_, {.ranks = 4}, *facts_), order, planner_.limits, 1).value();
  const auto make_replanner = [&] {
    return std::make_unique<Replanner>(first, ReplannerOptions{.planner = planner_},
                                       make_controller(spec, infos_, planner_, facts_));
  };
  const auto a = make_replanner();
  const auto b = make_replanner();
  EXPECT_TRUE(a->wants_profile(8));
  profile_.bytes_per_second = 12'500'000;
  std::vector<Reason> reasons;
  for (const std::uint64_t step : {3, 6, 8, 16}) {
    profile_.step_us = predict(*a->current(), profile_, planner_).step_us;
    const auto proposal = a->consider(step, profile_);
    const auto same = b->consider(step, profile_);
    ASSERT_EQ(proposal.has_value(), same.has_value());
    EXPECT_EQ(a->proposed_digest(), b->proposed_digest());
    if (proposal) {
      reasons.push_back(proposal->reason);
      a->adopted(step + 1);
      b->adopted(step + 1);
    }
  }
  EXPECT_NE(std::ranges::find(reasons, Reason::kCodecs), reasons.end());
  EXPECT_FALSE(a->frozen());
  EXPECT_FALSE(a->policy_log().empty());
  EXPECT_TRUE(
      std::ranges::any_of(a->current()->tensors(), [](const auto& t) { return t.decision.format().compressed(); }));
  a->restart();
  EXPECT_EQ(a->current(), first);
}

}  // namespace
}  // namespace sirtaki::scheduler
