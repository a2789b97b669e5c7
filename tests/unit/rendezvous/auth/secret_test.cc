#include "runtime/rendezvous/auth/secret.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sirtaki::rendezvous {
namespace {

class SecretFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "sirtaki_secret_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string make(const std::string& name, const std::string& content, mode_t mode) const {
    std::ofstream(path(name)) << content;
    ::chmod(path(name).c_str(), mode);
    return path(name);
  }
  std::filesystem::path folder_;
};

bool same(const Secret& a, const Secret& b) {
  return a.to_hex() == b.to_hex();
}

TEST(Secret, GeneratedOnesAreSetAndDiffer) {
  const auto a = Secret::generate();
  const auto b = Secret::generate();
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(a->is_set());
  EXPECT_FALSE(same(*a, *b));
  EXPECT_FALSE(Secret().is_set());
}

TEST(Secret, HexGoesThereAndBack) {
  const Secret secret = Secret::generate().value();
  EXPECT_EQ(secret.to_hex().size(), 2 * Secret::kBytes);
  EXPECT_TRUE(same(Secret::from_hex(secret.to_hex()).value(), secret));
}

TEST(Secret, BadHexIsRefusedWithoutQuotingIt) {
  std::string hex = Secret::generate()->to_hex();
  hex[10] = 'x';
  for (const std::string& text : {hex, hex.substr(1), hex + "00", std::string(), std::string(64, '0')}) {
    const auto result = Secret::from_hex(text);
    ASSERT_EQ(result.status().code(), Code::kInvalidArgument) << text.size();
    if (text.size() > 8) {
      EXPECT_EQ(result.status().text().find(text.substr(0, 8)), std::string::npos);
    }
  }
}

TEST_F(SecretFile, IsWrittenOnceWithMode600AndReadBack) {
  const Secret secret = Secret::generate().value();
  ASSERT_TRUE(secret.write_file(path("s")).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path("s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(same(Secret::from_file(path("s")).value(), secret));
  const Status again = secret.write_file(path("s"));
  EXPECT_EQ(again.code(), Code::kUnavailable);
  EXPECT_NE(again.text().find("exists"), std::string::npos);
  EXPECT_EQ(Secret().write_file(path("t")).code(), Code::kInvalidArgument);
}

TEST_F(SecretFile, ThatOthersCanReadIsRefusedWithTheFix) {
  const std::string hex = Secret::generate()->to_hex();
  for (const mode_t mode : {0640u, 0604u, 0666u, 0620u}) {
    const auto result = Secret::from_file(make("s", hex, mode));
    ASSERT_FALSE(result) << mode;
    EXPECT_NE(result.status().text().find("chmod 600 " + path("s")), std::string::npos);
  }
  EXPECT_TRUE(Secret::from_file(make("s", hex + "\n", 0400)));
}

TEST_F(SecretFile, MissingWrongOrEndlessFilesAreRefusedByName) {
  const Status none = Secret::from_file(path("none")).status();
  EXPECT_NE(none.text().find(path("none")), std::string::npos);
  EXPECT_NE(none.text().find("openssl rand -hex 32"), std::string::npos);
  EXPECT_NE(Secret::from_hex("abc").status().text().find("openssl rand -hex 32"), std::string::npos);
  EXPECT_FALSE(Secret::from_file(folder_.string()));
  EXPECT_FALSE(Secret::from_file("/dev/zero"));
  EXPECT_FALSE(Secret::from_file(make("empty", "", 0600)));
  EXPECT_FALSE(Secret::from_file(make("long", std::string(100000, 'a'), 0600)));
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(Secret::from_file(path("fifo")));
}

TEST(Secret, ComesThroughAPipeWhichIsThenClosed) {
  const Secret secret = Secret::generate().value();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = secret.to_hex() + "\n";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  EXPECT_TRUE(same(Secret::from_fd(ends[0]).value(), secret));
  EXPECT_EQ(::fcntl(ends[0], F_GETFD), -1);
  EXPECT_FALSE(Secret::from_fd(-1));
}

TEST(SecretTest, AFileIsReadFromItsBeginningWhoeverHasReadIt) {
  const Secret secret = Secret::generate().value();
  const int file = ::memfd_create("secret", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::string text = secret.to_hex();
  ASSERT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const int other = ::dup(file);  // shares the file position
  EXPECT_TRUE(same(Secret::from_fd(file).value(), secret));
  EXPECT_TRUE(same(Secret::from_fd(other).value(), secret));
}

TEST(SecretTest, ADescriptorThatIsSomethingElseByNowStaysOpen) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const auto refused = Secret::from_fd(ends[0]);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.status().text().find("something else"), std::string::npos);
  EXPECT_NE(::fcntl(ends[0], F_GETFD), -1);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace sirtaki::rendezvous
