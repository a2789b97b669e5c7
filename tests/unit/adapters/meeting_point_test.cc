#include "adapters/c/meeting_point.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/config/config_load.h"

namespace sirtaki::adapters {
namespace {

std::shared_ptr<const Config> config_with(const std::string& lines) {
  ConfigSources sources;
  sources.program = lines;
  auto config = load_config(sources);
  EXPECT_TRUE(config) << config.status().to_string();
  return *config;
}

Result<engine::JobSpec> find(const std::string& options, const Environment& environment, const GivenJob& given = {}) {
  MeetingPoint point;
  return point.find(*config_with(options), environment, given, [] { return false; });
}

void expect_refused(const Result<engine::JobSpec>& job, const char* word) {
  ASSERT_FALSE(job);
  EXPECT_EQ(job.status().code(), Code::kInvalidArgument);
  EXPECT_NE(job.status().text().find(word), std::string_view::npos) << job.status().to_string();
}

TEST(MeetingPointTest, NoLauncherMeansOneRank) {
  const auto job = find("", {});
  ASSERT_TRUE(job) << job.status().to_string();
  EXPECT_EQ(job->rank, 0);
  EXPECT_EQ(job->size, 1);
  EXPECT_EQ(job->rendezvous, "");
}

TEST(MeetingPointTest, GivenJobWinsOverTheEnvironment) {
  const std::string secret = rendezvous::Secret::generate()->to_hex();
  const auto job = find("", {{"RANK", "0"}, {"WORLD_SIZE", "9"}}, {2, 4, "10.0.0.1:4000", secret});
  ASSERT_TRUE(job) << job.status().to_string();
  EXPECT_EQ(job->rank, 2);
  EXPECT_EQ(job->size, 4);
  EXPECT_EQ(job->rendezvous, "10.0.0.1:4000");
  EXPECT_EQ(job->secret.to_hex(), secret);
}

TEST(MeetingPointTest, AFileServesWhereTheLaunchersDescriptorWasClosed) {
  const auto secret = rendezvous::Secret::generate().value();
  const std::string path = ::testing::TempDir() + "sirtaki_meeting_secret_" + std::to_string(getpid());
  ASSERT_TRUE(secret.write_file(path).ok());
  const std::string common =
      "job.rank = 0\njob.size = 2\njob.rendezvous = \"127.0.0.1:4000\"\njob.secret_fd = 1048575\n";
  const auto found = find(common + "job.secret_file = \"" + path + "\"\n", {});
  unlink(path.c_str());
  ASSERT_TRUE(found) << found.status().to_string();
  EXPECT_EQ(found->secret.to_hex(), secret.to_hex());
  const auto closed = find(common, {});
  ASSERT_FALSE(closed);
  EXPECT_NE(closed.status().text().find("has closed it"), std::string_view::npos) << closed.status().to_string();
  const auto neither = find(common + "job.secret_file = \"" + path + "\"\n", {});
  ASSERT_FALSE(neither);
  for (const std::string& word : {std::string("close_fds=False"), path}) {
    EXPECT_NE(neither.status().text().find(word), std::string_view::npos) << neither.status().to_string();
  }
}

TEST(MeetingPointTest, GivenJobIsChecked) {
  expect_refused(find("", {}, {4, 4, "h:1", ""}), "rank is 4");
  expect_refused(find("", {}, {0, 2, "", ""}), "rendezvous");
}

TEST(MeetingPointTest, SeveralHostsWithoutAddressSayWhatToSet) {
  const Environment env{
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  expect_refused(find("", env), "SIRTAKI_JOB_RENDEZVOUS");
}

TEST(MeetingPointTest, AddressWithoutSecretSaysHowToMakeOne) {
  const Environment env{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  expect_refused(find("job.rendezvous = \"10.0.0.1:4000\"\n", env), "SIRTAKI_JOB_SECRET_FILE");
}

TEST(MeetingPointTest, WhatIsNoAddressIsNamedWithItsVariable) {
  const Environment env{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  expect_refused(find("job.rendezvous = \"head\"\n", env), "SIRTAKI_JOB_RENDEZVOUS");
}

TEST(MeetingPointTest, TheRanksOfOneHostAreKnownToBe) {
  const std::string secret = rendezvous::Secret::generate()->to_hex();
  const GivenJob given{1, 4, "10.0.0.1:4000", secret};
  const Environment one{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
  const Environment two{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  EXPECT_TRUE(find("", one, given)->one_host);
  EXPECT_FALSE(find("", two, given)->one_host);
  EXPECT_FALSE(find("", {}, given)->one_host);
  const Environment namespaces{{"SIRTAKI_JOB_RANK", "1"}, {"SIRTAKI_JOB_SIZE", "4"}, {"SIRTAKI_JOB_LOCAL_SIZE", "4"}};
  EXPECT_FALSE(find("", namespaces, given)->one_host);
}

TEST(MeetingPointTest, LocalhostIsWhereARankMayHost) {
  MeetingPoint point;
  const Status status = point.host(2, "localhost", {}, *config_with(""));
  EXPECT_TRUE(status.ok()) << status.to_string();
  point.end(Duration::zero());
}

// Nobody starts lost ranks again there, so no place is kept for them.
TEST(MeetingPointTest, AJobThatARankHostsDoesNotGrow) {
  MeetingPoint point;
  const Status status = point.host(3, "127.0.0.1", {}, *config_with("elastic.min = 1\nelastic.max = 2\n"));
  EXPECT_TRUE(status.ok()) << status.to_string();
  point.end(Duration::zero());
}

TEST(MeetingPointTest, HostAnswersTheSameUntilTheSizeChanges) {
  MeetingPoint point;
  const auto config = config_with("");
  ASSERT_TRUE(point.host(2, "127.0.0.1", {}, *config).ok());
  const std::uint16_t port = point.port();
  EXPECT_NE(port, 0);
  EXPECT_TRUE(point.secret().is_set());
  ASSERT_TRUE(point.host(2, "127.0.0.1", {}, *config).ok());
  EXPECT_EQ(point.port(), port);
  EXPECT_FALSE(point.host(0, "127.0.0.1", {}, *config).ok());
  point.end(Duration::zero());
  EXPECT_EQ(point.port(), 0);
}

TEST(SplitEndpointTest, TakesHostAndPort) {
  EXPECT_EQ(split_endpoint("a.example:80")->first, "a.example");
  EXPECT_EQ(split_endpoint("[fd00::1]:80")->first, "fd00::1");
  EXPECT_EQ(split_endpoint("[fd00::1]:80")->second, 80);
  for (const char* bad : {"", "a", "a:", ":80", "a:0", "a:65536", "a:b"}) {
    EXPECT_FALSE(split_endpoint(bad)) << bad;
  }
}

}  // namespace
}  // namespace sirtaki::adapters
