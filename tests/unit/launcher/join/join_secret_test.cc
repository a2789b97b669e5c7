#include "launcher/join/join_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace sirtaki::launcher {
namespace {

const std::string kSome(64, 'a');

class JoinSecret : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ = testing::TempDir() + "join_secret_test." + std::to_string(getpid());
};

TEST_F(JoinSecret, IsWrittenOnceByTheJobForItsUserAlone) {
  const auto made = join_secret(path_, {}, true);
  ASSERT_TRUE(made) << made.status().to_string();
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(join_secret(path_, {}, true)->to_hex(), made->to_hex());
  EXPECT_EQ(join_secret(path_, {{std::string(kJoinSecretVariable), kSome}}, false)->to_hex(), made->to_hex());
}

TEST_F(JoinSecret, IsNotWrittenByAHostThatJoins) {
  const auto missing = join_secret(path_, {}, false);
  ASSERT_FALSE(missing);
  EXPECT_TRUE(missing.status().text().starts_with("--secret-file: cannot open")) << missing.status().to_string();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(JoinSecret, IsReadFromNoFileThatOthersCanRead) {
  std::ofstream(path_) << kSome;
  std::filesystem::permissions(path_, std::filesystem::perms(0644));
  const auto open = join_secret(path_, {}, true);
  ASSERT_FALSE(open);
  EXPECT_NE(open.status().text().find("chmod 600"), std::string::npos) << open.status().to_string();
}

TEST_F(JoinSecret, MayBeInTheEnvironment) {
  EXPECT_EQ(join_secret("", {{std::string(kJoinSecretVariable), kSome}}, true)->to_hex(), kSome);
  const auto wrong = join_secret("", {{std::string(kJoinSecretVariable), "1234"}}, true);
  ASSERT_FALSE(wrong);
  EXPECT_TRUE(wrong.status().text().starts_with("SIRTAKI_JOIN_SECRET: ")) << wrong.status().to_string();
  EXPECT_EQ(wrong.status().text().find("1234"), std::string::npos);
  EXPECT_NE(join_secret("", {}, true).status().text().find("--secret-file"), std::string::npos);
}

}  // namespace
}  // namespace sirtaki::launcher
