#include "launcher/process/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launcher/process/descriptors.h"

namespace sirtaki::launcher {
namespace {

std::string read_all(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t size = 0; (size = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

class SpawnFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "sirtaki_spawn_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& content, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  }
  SpawnError error_of(const std::string& command, const std::string& cwd = "") {
    SpawnSpec spec;
    spec.argv = {command};
    spec.env = {"PATH=" + folder_ + ":/usr/bin:/bin"};
    spec.cwd = cwd;
    SpawnError error;
    EXPECT_FALSE(spawn(spec, &error));
    return error;
  }
  std::string folder_;
};

TEST_F(SpawnFolder, RunsAProgramWithPipesAndInheritedDescriptor) {
  auto secret = memory_file("hidden");
  ASSERT_TRUE(secret);
  EXPECT_GE(secret->get(), 100);
  SpawnSpec spec;
  spec.argv = {"sh", "-c", "cat /proc/self/fd/" + std::to_string(secret->get()) + "; echo $X >&2; pwd; cat"};
  spec.env = {"PATH=/usr/bin:/bin", "X=variable"};
  spec.cwd = folder_;
  spec.pipe_stdin = true;
  spec.inherit_fd = secret->get();
  auto child = spawn(spec, nullptr);
  ASSERT_TRUE(child) << child.status().to_string();
  EXPECT_EQ(getsid(child->pid), child->pid);
  ASSERT_EQ(write(child->in.get(), "typed", 5), 5);
  child->in.reset();
  EXPECT_EQ(read_all(child->out.get()), "hidden" + std::filesystem::canonical(folder_).string() + "\ntyped");
  EXPECT_EQ(read_all(child->err.get()), "variable\n");
  int status = 0;
  EXPECT_EQ(waitpid(child->pid, &status, 0), child->pid);
  EXPECT_EQ(status, 0);
}

TEST_F(SpawnFolder, SaysWhyAProgramCannotRun) {
  EXPECT_EQ(error_of("no-such-program-anywhere").exit_code, 127);
  EXPECT_EQ(error_of("/no/such/path").exit_code, 127);
  const SpawnError plain = error_of(file("plain.py", "print(1)\n", 0644));
  EXPECT_EQ(plain.exit_code, 126);
  EXPECT_NE(plain.text.find("chmod +x"), std::string::npos);
  const SpawnError nothing = error_of(file("nothing", "print(1)\n", 0755));
  EXPECT_EQ(nothing.exit_code, 126);
  EXPECT_NE(nothing.text.find("#!"), std::string::npos);
  const SpawnError interpreter = error_of(file("odd", "#!/no/such/python\n", 0755));
  EXPECT_EQ(interpreter.exit_code, 127);
  EXPECT_NE(interpreter.text.find("interpreter"), std::string::npos);
  EXPECT_NE(error_of("sh", "/no/such/folder").text.find("/no/such/folder"), std::string::npos);
}

TEST_F(SpawnFolder, FindsProgramsInThePathOfTheChild) {
  file("mine", "#!/bin/sh\n", 0755);
  file("data", "", 0644);
  EXPECT_EQ(find_program("mine", "/nowhere:" + folder_), folder_ + "/mine");
  EXPECT_EQ(find_program("data", folder_), "");
  EXPECT_EQ(find_program("", folder_), "");
  EXPECT_EQ(find_program("./x", folder_), "./x");
}

TEST(MemoryFile, HasALowerNumberWhereTheLimitIsLow) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto file = memory_file("hidden");
  const Status enough = check_open_files(64, "a job");
  const Status scarce = check_open_files(65, "a job");
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(file) << file.status().to_string();
  EXPECT_GE(file->get(), 10);
  EXPECT_EQ(read_all(file->get()), "hidden");
  struct stat info {};
  ASSERT_EQ(fstat(file->get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);  // the path /proc/PID/fd is open to this user alone
  EXPECT_TRUE(enough.ok());
  EXPECT_NE(scarce.to_string().find("ulimit -n"), std::string::npos);
}

}  // namespace
}  // namespace sirtaki::launcher
