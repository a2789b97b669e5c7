#include "launcher/discovery.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/signal_set.hpp>
#include <filesystem>
#include <fstream>

namespace sirtaki::launcher {
namespace {

using Hosts = std::vector<Host>;

TEST(DiscoveredHosts, AreOneALine) {
  const auto hosts = parse_discovered("a:2\n\n  b \r\n[fd00::2]:4\n[::1]\na:2\nuser@c:1", 3);
  ASSERT_TRUE(hosts) << hosts.status().to_string();
  EXPECT_EQ(*hosts, (Hosts{{"a", 2}, {"b", 3}, {"fd00::2", 4}, {"::1", 3}, {"user@c", 1}}));
  EXPECT_EQ(*parse_discovered("\n \n", 1), Hosts());
}

TEST(DiscoveredHosts, MustMakeSense) {
  for (const char* text : {"a b", "a:0", "a:x", "-oProxyCommand=x", "a,b", "a;reboot", "a:2\na:3", "[fd00::2"}) {
    EXPECT_FALSE(parse_discovered(text, 1)) << text;
  }
  EXPECT_EQ(parse_discovered("a:2\na:3", 1).status().text(), "host 'a' is named with 2 and with 3 slots");
}

// Runs a script in a folder of its own and notes what comes of it, until there is enough. Then nothing may be left that
// would run the script again.
class DiscoveryTest : public ::testing::Test {
 protected:
  DiscoveryTest() {
    folder_ = ::testing::TempDir() + "sirtaki_discovery_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    wait_for_child();
  }
  ~DiscoveryTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> results(const std::string& script, std::size_t runs,
                                   Duration patience = std::chrono::seconds(20)) {
    DiscoveryOptions options;
    options.script = "cd " + folder_ + "; " + script;
    options.interval = std::chrono::milliseconds(1);
    options.patience = patience;
    std::vector<std::string> found;
    const auto note = [&](std::string text) {
      found.push_back(std::move(text));
      if (found.size() == runs) {
        discovery_->stop();
        enough_ = true;
      }
    };
    Discovery::Events events;
    events.on_hosts = [&](const Hosts& hosts) {
      std::string text;
      for (const Host& host : hosts) {
        text += host.name + ":" + std::to_string(host.slots) + " ";
      }
      note(text);
    };
    events.on_failed = [&](const Status& status) { note(std::string(status.text())); };
    discovery_.emplace(io_, options, std::vector<std::string>{"PATH=/usr/bin:/bin"}, events);
    discovery_->start();
    io_.run_for(std::chrono::seconds(60));
    EXPECT_TRUE(io_.stopped()) << "something is left";
    return found;
  }

 private:
  void wait_for_child() {
    children_.async_wait([this](const boost::system::error_code& error, int) {
      int status = 0;
      for (pid_t pid = 0; !error && (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        discovery_->on_child_exit(pid, status);
      }
      if (!error && !enough_) {
        wait_for_child();
      }
    });
  }

  std::string folder_;
  boost::asio::io_context io_;
  boost::asio::signal_set children_{io_, SIGCHLD};
  std::optional<Discovery> discovery_;
  bool enough_ = false;
};

TEST_F(DiscoveryTest, RunsTheScriptAgainAndAgain) {
  EXPECT_EQ(results("echo a:2; test -e seen && echo b; touch seen; true", 3),
            (std::vector<std::string>{"a:2 ", "a:2 b:1 ", "a:2 b:1 "}));
}

TEST_F(DiscoveryTest, ReadsMoreThanAPipeHolds) {
  const auto found = results("i=0; while test $i -lt 20000; do echo host-$i:1; i=$((i+1)); done", 1);
  EXPECT_EQ(found.front().substr(found.front().size() - 13), "host-19999:1 ");
}

TEST_F(DiscoveryTest, AScriptThatPrintsTooMuchIsNotHeldUp) {
  const std::string much = "head -c 2000000 /dev/zero";
  EXPECT_EQ(results(much + " >&2; echo a:2", 1, std::chrono::seconds(5)), std::vector<std::string>{"a:2 "});
}

TEST_F(DiscoveryTest, SaysThatAScriptHasPrintedTooMuch) {
  EXPECT_EQ(results("head -c 2000000 /dev/zero", 1, std::chrono::seconds(5)),
            std::vector<std::string>{"it has printed more than 1 MiB"});
}

TEST_F(DiscoveryTest, SaysWhyARunHasFailed) {
  EXPECT_EQ(results("echo a; echo 'no such cluster' >&2; exit 3", 1),
            std::vector<std::string>{"exit code 3: no such cluster"});
}

TEST_F(DiscoveryTest, SaysWhatIsNoHost) {
  const std::string text = results("echo 'Warning: slow'", 1).front();
  EXPECT_TRUE(text.starts_with("host 'Warning: slow': ' slow' is not a number of slots")) << text;
}

TEST_F(DiscoveryTest, EndsAScriptThatHangsAndWhatItHasStarted) {
  const auto found =
      results("if test -e seen; then echo a; else touch seen; sleep 1000; fi", 2, std::chrono::seconds(2));
  EXPECT_EQ(found, (std::vector<std::string>{"it has not ended within 2s", "a:1 "}));
}

}  // namespace
}  // namespace sirtaki::launcher
