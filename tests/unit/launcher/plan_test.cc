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

TEST(JobPlan, AHubHasNoHostOfItsOwn) {
  RunOptions options;
  options.command = {"cmd"};
  options.join.port = 0;
  options.join.hub = true;
  options.option_lines = "elastic.min = \"2\"\nelastic.max = \"4\"\n";
  const Environment environment = {{"SIRTAKI_JOIN_SECRET", std::string(64, 'a')}};
  const Result<JobPlan> plan = make_plan(options, environment);
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_TRUE(plan->hosts.empty());
  EXPECT_EQ(plan->size, 2);
  options.np = 3;
  EXPECT_EQ(make_plan(options, environment)->size, 3);
  options.option_lines = "elastic.min = \"2\"\n";
  EXPECT_TRUE(make_plan(options, environment).status().text().starts_with("--hub needs --elastic MIN:MAX"));
}

RunOptions with_spares(const std::string& hosts, int spares, const std::string& elastic) {
  RunOptions options;
  options.command = {"cmd"};
  options.hosts = hosts;
  options.spares = spares;
  options.option_lines = elastic;
  return options;
}

TEST(JobPlan, SparesHavePlacesBeyondTheMostRanks) {
  const std::string elastic = "elastic.min = \"1\"\nelastic.max = \"3\"\n";
  for (const char* hosts : {"", "localhost:3", "localhost:9"}) {
    const Result<JobPlan> plan = make_plan(with_spares(hosts, 2, elastic), {});
    ASSERT_TRUE(plan) << plan.status().to_string();
    EXPECT_EQ(plan->size, 3) << hosts;
    EXPECT_EQ(plan->places, 5) << hosts;
    EXPECT_EQ(plan->most_ranks(), 3) << hosts;
    ASSERT_EQ(plan->placements.size(), 1U);
    EXPECT_GE(plan->placements.front().slots, 5) << hosts;
  }
  RunOptions joined = with_spares("localhost:2", 2, elastic);
  joined.join.port = 0;
  const Result<JobPlan> plan = make_plan(joined, {{"SIRTAKI_JOIN_SECRET", std::string(64, 'a')}});
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ(plan->places, 5);
  const Result<JobPlan> few = make_plan(with_spares("localhost:2", 2, elastic), {});
  EXPECT_NE(few.status().text().find("elastic.max is 3, but the hosts offer 2 slots"), std::string_view::npos)
      << "spares do not make up for ranks that have no slot";
}

TEST(JobPlan, SparesNeedAJobThatGrows) {
  for (const char* elastic : {"", "elastic.min = \"1\"\n"}) {
    const Result<JobPlan> plan = make_plan(with_spares("localhost:2", 1, elastic), {});
    ASSERT_FALSE(plan);
    EXPECT_TRUE(plan.status().text().starts_with("--spares 1 needs --elastic MIN:MAX")) << plan.status().to_string();
  }
  const std::string elastic = "elastic.min = \"1\"\nelastic.max = \"2\"\n";
  EXPECT_FALSE(make_plan(with_spares("localhost:2", 65535, elastic), {}).ok());
}

}  // namespace
}  // namespace sirtaki::launcher
