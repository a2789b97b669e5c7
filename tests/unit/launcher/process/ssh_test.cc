#include "launcher/process/ssh.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>

namespace sirtaki::launcher {
namespace {

TEST(SshCommand, HoldsNothingButThePathOfTheAgent) {
  SshOptions options;
  options.port = 2222;
  options.identity_file = "/k";
  options.extra = {"-o", "BatchMode=no"};
  const auto argv = ssh_command(options, "node1", "/opt/my tools/sirtakirun");
  EXPECT_EQ(argv.back(), "'/opt/my tools/sirtakirun' --agent");
  EXPECT_EQ(argv[argv.size() - 2], "node1");
  EXPECT_EQ(argv[argv.size() - 3], "--");
  const auto at = [&](const char* word) { return std::find(argv.begin(), argv.end(), word) - argv.begin(); };
  EXPECT_LT(at("BatchMode=no"), at("BatchMode=yes"));
  EXPECT_EQ(argv[static_cast<std::size_t>(at("-p")) + 1], "2222");
}

TEST(SshFailure, NamesTheFix) {
  const int failed = W_EXITCODE(255, 0);
  const auto text = [](const Status& status) { return std::string(status.text()); };
  EXPECT_NE(
      text(explain_ssh_failure("h", "/s", failed, "u@h: Permission denied (publickey).\n", "")).find("--ssh-identity"),
      std::string::npos);
  EXPECT_NE(text(explain_ssh_failure("h", "/s", failed, "Host key verification failed.\r\n", "")).find("ssh h true"),
            std::string::npos);
  EXPECT_NE(text(explain_ssh_failure("h", "/s", failed, "connect: Connection refused", "")).find("--ssh-port"),
            std::string::npos);
  EXPECT_NE(text(explain_ssh_failure("h", "/s", W_EXITCODE(127, 0), "sh: /s: not found", "")).find("--remote-path"),
            std::string::npos);
  EXPECT_NE(text(explain_ssh_failure("h", "/s", failed, "something new", "")).find("something new"), std::string::npos);
}

TEST(SplitWords, FollowsQuotes) {
  const auto words = split_words(R"(-o 'A b' "c \"d" e\ f '')");
  ASSERT_TRUE(words);
  EXPECT_EQ(*words, (std::vector<std::string>{"-o", "A b", "c \"d", "e f", ""}));
  EXPECT_TRUE(split_words("  ")->empty());
  EXPECT_FALSE(split_words("a 'b"));
}

}  // namespace
}  // namespace sirtaki::launcher
