#include "launcher/process/processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sirtaki::launcher {
namespace {

TEST(ParseStat, ReadsNamesWithSpacesAndParentheses) {
  const auto info = parse_stat("4242 (a) b (c)) S 17 18 19 0 -1");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->pid, 4242);
  EXPECT_EQ(info->state, 'S');
  EXPECT_EQ(info->parent, 17);
  EXPECT_EQ(info->group, 18);
  EXPECT_EQ(info->session, 19);
}

TEST(ParseStat, RefusesWhatIsCut) {
  const std::string_view whole = "4242 (name) S 17 18 19";
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
    const auto info = parse_stat(whole.substr(0, size));
    EXPECT_FALSE(info && info->session == 19) << size;
  }
  EXPECT_FALSE(parse_stat("no number"));
}

TEST(KillDescendants, EndsChildrenThatHaveASessionOfTheirOwn) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    [[maybe_unused]] const ssize_t written = write(ready[1], "x", 1);
    while (true) {
      pause();
    }
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(session_members(child).size(), 1U);
  EXPECT_EQ(kill_descendants(std::chrono::seconds(5)), 0);
  EXPECT_TRUE(descendants().empty());
  close(ready[0]);
  close(ready[1]);
}

TEST(WaitStatus, IsDescribedLikeAShell) {
  EXPECT_EQ(describe_wait_status(W_EXITCODE(3, 0)), "exit code 3");
  EXPECT_EQ(describe_wait_status(W_EXITCODE(0, 9)), "killed by signal 9 (Killed)");
  EXPECT_EQ(exit_code_of(W_EXITCODE(3, 0)), 3);
  EXPECT_EQ(exit_code_of(W_EXITCODE(0, 15)), 143);
}

}  // namespace
}  // namespace sirtaki::launcher
