#include "adapters/c/same_host_meeting.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace sirtaki::adapters {
namespace {

class LocalMeetingTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "meetingXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  static Meeting meeting() { return {"127.0.0.1:4242", *rendezvous::Secret::generate()}; }

  std::string directory_;
};

TEST_F(LocalMeetingTest, WhatIsWrittenIsRead) {
  const std::string path = directory_ + "/job";
  const Meeting written = meeting();
  ASSERT_TRUE(write_meeting(path, written).ok());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  const auto read = await_meeting(path, Duration::zero(), {});
  ASSERT_TRUE(read) << read.status().to_string();
  EXPECT_EQ(read->endpoint, "127.0.0.1:4242");
  EXPECT_EQ(read->secret.to_hex(), written.secret.to_hex());
}

TEST_F(LocalMeetingTest, NewFileReplacesTheOld) {
  const std::string path = directory_ + "/job";
  ASSERT_TRUE(write_meeting(path, meeting()).ok());
  Meeting second = meeting();
  second.endpoint = "127.0.0.1:4343";
  ASSERT_TRUE(write_meeting(path, second).ok());
  EXPECT_EQ(await_meeting(path, Duration::zero(), {})->endpoint, "127.0.0.1:4343");
}

TEST_F(LocalMeetingTest, FileOfADeadProcessIsIgnored) {
  const std::string path = directory_ + "/job";
  std::ofstream(path) << "999999999 1\n127.0.0.1:1\n" << rendezvous::Secret::generate()->to_hex() << "\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(await_meeting(path, Duration::zero(), {}).status().code(), Code::kUnavailable);
}

TEST_F(LocalMeetingTest, FileThatOthersCanReadIsIgnored) {
  const std::string path = directory_ + "/job";
  ASSERT_TRUE(write_meeting(path, meeting()).ok());
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_FALSE(await_meeting(path, Duration::zero(), {}));
}

TEST_F(LocalMeetingTest, AbsentFileBlamesRankZero) {
  const auto none = await_meeting(directory_ + "/none", Duration::zero(), {});
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_EQ(none.status().blame().rank, 0);
}

TEST_F(LocalMeetingTest, InterruptionEndsTheWait) {
  const auto none = await_meeting(directory_ + "/none", std::chrono::hours(1), [] { return true; });
  EXPECT_EQ(none.status().code(), Code::kAborted);
}

TEST_F(LocalMeetingTest, PathDependsOnTheJobAlone) {
  JobEnv job;
  job.launcher = "srun";
  job.job_id = "17/../x";
  const auto path = meeting_path(directory_, job);
  ASSERT_TRUE(path) << path.status().to_string();
  EXPECT_EQ(*path, directory_ + "/srun-17_.._x");
  job.job_id = "none";
  EXPECT_NE(*meeting_path(directory_, job), *path);
}

TEST_F(LocalMeetingTest, DirectoryOpenToOthersIsRefused) {
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  EXPECT_EQ(meeting_path(directory_, {}).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace sirtaki::adapters
