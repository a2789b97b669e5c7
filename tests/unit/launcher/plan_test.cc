#include "launcher/plan.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

// The plan ends where it looks for the Python package, which this program has not been installed with.
TEST(JobPlan, HostsOfHorovodMayHaveMoreSlotsThanAJobHasRanks) {
  RunOptions options;
  options.horovod = true;
  options.hosts = "localhost:65536,127.0.0.1:8";
  options.option_lines = "elastic.min = \"2\"\n";
  const Result<JobPlan> plan = make_plan(options, {});
  ASSERT_FALSE(plan);
  EXPECT_TRUE(plan.status().text().starts_with("--horovod: the Python package")) << plan.status().to_string();
}

TEST(JobPlan, AJobThatHostsJoinStartsOnThisHostAndHidesTheSecret) {
  RunOptions options;
  options.command = {"cmd"};
  options.join.port = 0;
  options.option_lines = "elastic.min = \"2\"\nelastic.max = \"4\"\n";
  const std::string secret(64, 'a');
  const Result<JobPlan> plan = make_plan(options, {{"SIRTAKI_JOIN_SECRET", secret}, {"A", "1"}});
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ(plan->join_secret->to_hex(), secret);
  EXPECT_EQ(plan->size, 2);
  EXPECT_EQ(plan->places, 4);
  ASSERT_EQ(plan->hosts.size(), 1U);
  EXPECT_EQ(plan->hosts.front().slots, 2);
  EXPECT_NE(plan->hosts.front().name, "localhost");
  EXPECT_EQ(plan->own_env, std::vector<std::string>{"A=1"});
  for (const auto& [name, value] : plan->variables) {
    EXPECT_EQ(value.find(secret), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace sirtaki::launcher
