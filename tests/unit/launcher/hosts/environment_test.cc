#include "launcher/hosts/environment.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

TEST(Environment, PassesTheUsersVariablesAndKeepsTheMachinesOwn) {
  const Environment here = {{"PATH", "/bin"},
                            {"PYTHONPATH", "/x"},
                            {"HOME", "/root"},
                            {"SSH_AUTH_SOCK", "s"},
                            {"DISPLAY", ":0"},
                            {"SIRTAKI_JOB_RANK", "3"},
                            {"SIRTAKI_LOG_LEVEL", "debug"}};
  const auto passed = variables_for_ranks(here, {});
  ASSERT_TRUE(passed);
  EXPECT_EQ(*passed, (Variables{{"PATH", "/bin"}, {"PYTHONPATH", "/x"}, {"SIRTAKI_LOG_LEVEL", "debug"}}));
}

TEST(Environment, WhatIsAskedForAlwaysGoes) {
  const auto passed = variables_for_ranks({{"HOME", "/root"}, {"A", "1"}}, {"HOME", "A=2", "B="});
  ASSERT_TRUE(passed);
  EXPECT_EQ(*passed, (Variables{{"A", "2"}, {"B", ""}, {"HOME", "/root"}}));
}

TEST(Environment, UnderHorovodTheProgramMayMeetWhereTheUserSays) {
  const Environment here = {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}};
  EXPECT_EQ(*variables_for_ranks(here, {}, true), Variables(here.begin(), here.end()));
  EXPECT_EQ(*variables_for_ranks(here, {}, false), Variables()) << "the launcher names its own rendezvous";
  Environment outer = here;
  outer["RANK"] = "0";
  EXPECT_EQ(*variables_for_ranks(outer, {}, true), Variables()) << "the rendezvous of another job";
}

TEST(Environment, NamesAVariableThatIsNotSet) {
  const auto passed = variables_for_ranks({}, {"NOPE"});
  ASSERT_FALSE(passed);
  EXPECT_NE(passed.status().text().find("NOPE"), std::string_view::npos);
  EXPECT_FALSE(variables_for_ranks({}, {"=x"}));
}

TEST(Environment, AFolderComesFirstInAList) {
  Variables variables = {{"PYTHONPATH", "/a:/b"}, {"EMPTY", ""}};
  put_first(variables, "PYTHONPATH", "/x");
  put_first(variables, "EMPTY", "/x");
  put_first(variables, "NEW", "/x");
  EXPECT_EQ(variables, (Variables{{"PYTHONPATH", "/x:/a:/b"}, {"EMPTY", "/x"}, {"NEW", "/x"}}));
}

TEST(VariablesOfRank, SayItsPlaceUnderTorchrunsNamesTooOrUnderHorovodsOnRequest) {
  const RankNumbers numbers{1, 2, 0, 3};
  EXPECT_EQ(variables_of_rank(1, 5, numbers, "node1", false), (Variables{{"SIRTAKI_JOB_RANK", "1"},
                                                                         {"SIRTAKI_JOB_SIZE", "5"},
                                                                         {"SIRTAKI_JOB_LOCAL_RANK", "1"},
                                                                         {"SIRTAKI_JOB_LOCAL_SIZE", "2"},
                                                                         {"RANK", "1"},
                                                                         {"WORLD_SIZE", "5"},
                                                                         {"LOCAL_RANK", "1"},
                                                                         {"LOCAL_WORLD_SIZE", "2"},
                                                                         {"GROUP_RANK", "0"}}));
  for (const auto& [name, value] : variables_of_rank(1, 5, numbers, "node1", false)) {
    EXPECT_TRUE(describes_rank(name)) << name;
  }
  const Variables with = variables_of_rank(1, 5, numbers, "node1", true);
  const Environment found(with.begin(), with.end());
  EXPECT_FALSE(found.contains("RANK"));
  EXPECT_EQ(found.at("HOROVOD_RANK"), "1");
  EXPECT_EQ(found.at("HOROVOD_SIZE"), "5");
  EXPECT_EQ(found.at("HOROVOD_LOCAL_RANK"), "1");
  EXPECT_EQ(found.at("HOROVOD_LOCAL_SIZE"), "2");
  EXPECT_EQ(found.at("HOROVOD_CROSS_RANK"), "0");
  EXPECT_EQ(found.at("HOROVOD_CROSS_SIZE"), "3");
  EXPECT_EQ(found.at("HOROVOD_HOSTNAME"), "node1");
  for (const auto& [name, value] : with) {
    EXPECT_TRUE(describes_rank(name)) << name;  // else a job inside this one would inherit it
  }
}

}  // namespace
}  // namespace sirtaki::launcher
