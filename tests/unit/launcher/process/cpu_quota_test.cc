#include "launcher/process/cpu_quota.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace sirtaki::launcher {
namespace {

// A machine's files below a folder.
class CpuQuota : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "sirtaki_quota_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void version1(const std::string& folder, const std::string& quota) const {
    write("/sys/fs/cgroup/cpu" + folder + "/cpu.cfs_quota_us", quota + "\n");
    write("/sys/fs/cgroup/cpu" + folder + "/cpu.cfs_period_us", "100000\n");
  }
  void mounted(const std::string& root, const std::string& where, const std::string& type,
               const std::string& options) const {
    write("/proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n36 25 0:32 " + root + " " + where +
                                      " rw,relatime shared:9 - " + type + " cgroup " + options + "\n");
  }
  std::string root_;
};

TEST_F(CpuQuota, IsTheSmallestOnTheWayUpInVersion2) {
  mounted("/", "/sys/fs/cgroup", "cgroup2", "rw,nsdelegate");
  write("/proc/self/cgroup", "0::/jobs.slice/one.scope\n");
  EXPECT_EQ(quota_cores(root_), std::nullopt);
  write("/sys/fs/cgroup/jobs.slice/one.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(quota_cores(root_), std::nullopt);
  write("/sys/fs/cgroup/jobs.slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota_cores(root_), 2);
  write("/sys/fs/cgroup/jobs.slice/one.scope/cpu.max", "20000 100000\n");
  EXPECT_EQ(quota_cores(root_), 1);
}

TEST_F(CpuQuota, IsReadInVersion1) {
  mounted("/", "/sys/fs/cgroup/cpu", "cgroup", "rw,cpu,cpuacct");
  write("/proc/self/cgroup", "5:memory:/elsewhere\n4:cpu,cpuacct:/batch/7\n0::/\n");
  version1("", "-1");
  version1("/batch/7", "-1");
  EXPECT_EQ(quota_cores(root_), std::nullopt);
  version1("/batch", "800000");
  EXPECT_EQ(quota_cores(root_), 8);
  version1("/batch/7", "300000");
  EXPECT_EQ(quota_cores(root_), 3);
}

TEST_F(CpuQuota, IsFoundInsideAContainer) {
  mounted("/docker/12ab", "/sys/fs/cgroup/cpu", "cgroup", "ro,cpu");
  write("/proc/self/cgroup", "4:cpu:/docker/12ab/inner\n");
  version1("", "400000");
  EXPECT_EQ(quota_cores(root_), 4);
  version1("/inner", "200000");
  EXPECT_EQ(quota_cores(root_), 2);
}

TEST_F(CpuQuota, IsNoneWhereNothingCanBeRead) {
  EXPECT_EQ(quota_cores(root_), std::nullopt);
  mounted("/", "/sys/fs/cgroup", "cgroup2", "rw");
  write("/proc/self/cgroup", "nonsense\n0::/a\n");
  write("/sys/fs/cgroup/a/cpu.max", "many 0\n");
  EXPECT_EQ(quota_cores(root_), std::nullopt);
}

}  // namespace
}  // namespace sirtaki::launcher
