#include "launcher/process/handlers.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace sirtaki::launcher {
namespace {

constexpr std::uint64_t bit(int signal_number) {
  return std::uint64_t{1} << (signal_number - 1);
}

SessionProcess process(pid_t pid, pid_t parent, const std::string& program, const std::string& command,
                       std::uint64_t caught = 0) {
  return {pid, parent, program, command, {0, 0, caught}};
}

TEST(SignalMasks, AreReadFromTheStatusOfAProcess) {
  const auto masks = parse_signal_masks(
      "Name:\tpython\nSigPnd:\t0000000000000000\nSigBlk:\t0000000000000200\nSigIgn:\t0000000001001000\n"
      "SigCgt:\t0000000100004002\n");
  ASSERT_TRUE(masks);
  EXPECT_TRUE(masks->handles(SIGTERM));
  EXPECT_TRUE(masks->handles(SIGUSR1));  // blocked: a thread waits for it
  EXPECT_FALSE(masks->handles(SIGUSR2));
  EXPECT_FALSE(masks->handles(SIGPIPE));
  EXPECT_TRUE(masks->survives(SIGPIPE));
  EXPECT_FALSE(masks->survives(SIGUSR2));
  EXPECT_FALSE(parse_signal_masks("SigBlk:\t0"));
  EXPECT_FALSE(parse_signal_masks(""));
}

TEST(FindHandler, LooksBehindWrappersThatDoNotHandleTheSignal) {
  const std::vector<SessionProcess> wrapped = {process(1, 0, "/conda", "conda run"), process(2, 1, "/bash", "bash x"),
                                               process(3, 2, "/python", "train.py", bit(SIGUSR1))};
  EXPECT_EQ(find_handler(wrapped, 1, SIGUSR1), 3);
  EXPECT_EQ(find_handler(wrapped, 1, SIGUSR2), std::nullopt);
}

TEST(FindHandler, TakesNoHelperForTheProgram) {
  // A data loader is a copy of its program and may handle SIGTERM although the program does not.
  const std::vector<SessionProcess> loader = {process(1, 0, "/python", "train.py"),
                                              process(2, 1, "/python", "train.py", bit(SIGTERM))};
  EXPECT_EQ(find_handler(loader, 1, SIGTERM), std::nullopt);
  const std::vector<SessionProcess> service = {process(1, 0, "/python", "train.py"),
                                               process(2, 1, "/service", "service", bit(SIGTERM)),
                                               process(3, 1, "/other", "other")};
  EXPECT_EQ(find_handler(service, 1, SIGTERM), std::nullopt);
}

TEST(FindHandler, EndsOnListingsThatMakeNoSense) {
  const std::vector<SessionProcess> circle = {process(1, 2, "/a", "a"), process(2, 1, "/b", "b")};
  EXPECT_EQ(find_handler(circle, 1, SIGTERM), std::nullopt);
  EXPECT_EQ(find_handler({}, 1, SIGTERM), std::nullopt);
  sigterm_targets(circle, 1, 3);
}

TEST(SigtermTargets, LeaveOutWrappersAboveAndHelpersBelow) {
  const std::vector<SessionProcess> family = {
      process(1, 0, "/conda", "conda run"),   process(2, 1, "/python", "train.py", bit(SIGTERM)),
      process(3, 2, "/python", "train.py"),   process(4, 3, "/gzip", "gzip"),
      process(5, 2, "/prefetch", "prefetch"), process(6, 99, "/orphan", "orphan")};
  EXPECT_EQ(sigterm_targets(family, 1, 2), (std::vector<pid_t>{2, 5, 6}));
}

TEST(SigtermTargets, IncludeTheChildOfAShellWithATrap) {
  const std::vector<SessionProcess> shell = {process(1, 0, "/sh", "sh job.sh", bit(SIGTERM)),
                                             process(2, 1, "/python", "train.py")};
  EXPECT_EQ(sigterm_targets(shell, 1, 1), (std::vector<pid_t>{1, 2}));
}

}  // namespace
}  // namespace sirtaki::launcher
