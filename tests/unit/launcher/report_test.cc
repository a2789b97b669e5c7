#include "launcher/report.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace sirtaki::launcher {
namespace {

TEST(FailureReport, NamesRankHostCauseAndLastLines) {
  const auto lines = failure_report({2, "node1", "exit code 3", 3, {}}, {"a", "b"});
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "sirtakirun: the first to fail was rank 2 on node1: exit code 3");
  EXPECT_EQ(lines[2], "  | a");
  EXPECT_EQ(lines[3], "  | b");
}

TEST(FailureReport, NamesNoRankIfNoneIsToBlame) {
  const auto lines = failure_report({-1, "", "too few ranks", 1, {}}, {});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0], "sirtakirun: no rank is to blame: too few ranks");
}

TEST(FailureReport, DoesNotNameTheRankTwice) {
  EXPECT_EQ(without_rank("rank 3 (host a, process 7) has been silent for 5 s", 3), "has been silent for 5 s");
  EXPECT_EQ(without_rank("rank 3 (host a, process 7) has been silent", 2),
            "rank 3 (host a, process 7) has been silent");
  EXPECT_EQ(without_rank("rank 3 (", 3), "rank 3 (");
  EXPECT_EQ(without_rank("", 0), "");
}

TEST(FailureReport, ExplainsSignals) {
  const auto lines = failure_report({0, "h", "killed by signal 9 (Killed)", 137, SIGKILL}, {});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[1].find("memory"), std::string::npos);
  EXPECT_EQ(signal_hint(SIGUSR1), "");
}

}  // namespace
}  // namespace sirtaki::launcher
