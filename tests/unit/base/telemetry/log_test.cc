#include "runtime/base/telemetry/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>
#include <thread>

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

class MemorySink final : public LogSink {
 public:
  explicit MemorySink(std::vector<std::string>& lines) : lines_(lines) {}
  void write(LogLevel /*level*/, std::string_view line) override { lines_.emplace_back(line); }

 private:
  std::vector<std::string>& lines_;
};

class LogTest : public testing::Test {
 protected:
  Logger make(LogLevel level, Rank rank = 2, bool timestamps = false) {
    return Logger({.level = level,
                   .rank = rank,
                   .timestamps = timestamps,
                   .wall_clock = [] { return std::chrono::system_clock::time_point(1'700'000'000'123'456us); },
                   .clock = [this] { return now_; }},
                  std::make_unique<MemorySink>(lines_));
  }

  std::vector<std::string> lines_;
  TimePoint now_{100s};
};

TEST_F(LogTest, LineHasLevelRankAndText) {
  Logger log = make(LogLevel::kInfo);
  log.warn("rank 1 is late");
  EXPECT_EQ(lines_, (std::vector<std::string>{"sirtaki[2] warn: rank 1 is late\n"}));
}

TEST_F(LogTest, TimeIsUtcWithMicroseconds) {
  Logger log = make(LogLevel::kInfo, -1, true);
  log.error("x");
  EXPECT_EQ(lines_.at(0), "2023-11-14T22:13:20.123456Z sirtaki error: x\n");
}

TEST_F(LogTest, JsonHasOneObjectALine) {
  LoggerOptions options;
  options.rank = 2;
  options.timestamps = false;
  options.json = true;
  Logger(options, std::make_unique<MemorySink>(lines_)).warn("a \"b\"\nc");
  options.rank = -1;
  options.timestamps = true;
  options.wall_clock = [] { return std::chrono::system_clock::time_point(1'700'000'000'123'456us); };
  Logger(options, std::make_unique<MemorySink>(lines_)).error("x");
  EXPECT_EQ(lines_, (std::vector<std::string>{R"({"level":"warn","rank":2,"message":"a \"b\"\nc"})"
                                              "\n",
                                              R"({"time":"2023-11-14T22:13:20.123456Z","level":"error","message":"x"})"
                                              "\n"}));
}

TEST_F(LogTest, LevelsBelowAreNotWritten) {
  Logger log = make(LogLevel::kWarn);
  log.debug("no");
  log.info("no");
  log.write_limited(LogLevel::kInfo, "key", 1s, "no");
  EXPECT_TRUE(lines_.empty());
  EXPECT_FALSE(log.enabled(LogLevel::kInfo));
  EXPECT_TRUE(log.enabled(LogLevel::kError));
  EXPECT_FALSE(make(LogLevel::kOff).enabled(LogLevel::kError));
}

TEST_F(LogTest, OneEventStaysOneLine) {
  Logger log = make(LogLevel::kInfo);
  log.info("junk from\na stranger\r");
  EXPECT_EQ(lines_.at(0), "sirtaki[2] info: junk from a stranger \n");
}

TEST_F(LogTest, RateLimitIsPerKeyAndCountsWhatItLeftOut) {
  Logger log = make(LogLevel::kInfo);
  for (int i = 0; i < 5; ++i) {
    log.write_limited(LogLevel::kWarn, "stranger", 10s, "refused");
  }
  log.write_limited(LogLevel::kWarn, "other", 10s, "else");
  ASSERT_EQ(lines_.size(), 2U);
  now_ += 9s;
  log.write_limited(LogLevel::kWarn, "stranger", 10s, "refused");
  EXPECT_EQ(lines_.size(), 2U);
  now_ += 1s;
  log.write_limited(LogLevel::kWarn, "stranger", 10s, "refused");
  ASSERT_EQ(lines_.size(), 3U);
  EXPECT_EQ(lines_.back(), "sirtaki[2] warn: refused (and 5 more like it before)\n");
  now_ += 10s;
  log.write_limited(LogLevel::kWarn, "stranger", 10s, "refused");
  EXPECT_EQ(lines_.back(), "sirtaki[2] warn: refused\n");
}

TEST_F(LogTest, ManyKeysForgetTheOldest) {
  Logger log = make(LogLevel::kInfo);
  for (int i = 0; i < 2000; ++i) {
    now_ += 1ms;
    log.write_limited(LogLevel::kWarn, "key " + std::to_string(i), 1h, "x");
  }
  log.write_limited(LogLevel::kWarn, "key 1999", 1h, "x");  // still known
  EXPECT_EQ(lines_.size(), 2000U);
  log.write_limited(LogLevel::kWarn, "key 0", 1h, "x");  // forgotten
  EXPECT_EQ(lines_.size(), 2001U);
}

TEST_F(LogTest, ThreadsDoNotMixTheirLines) {
  Logger log = make(LogLevel::kInfo);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log, t] {
      for (int i = 0; i < 100; ++i) {
        log.info(std::string(50, static_cast<char>('a' + t)));
        log.write_limited(LogLevel::kInfo, "shared", 1h, "once");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(lines_.size(), 401U);
  EXPECT_EQ(std::count(lines_.begin(), lines_.end(), "sirtaki[2] info: once\n"), 1);
}

TEST(LogFile, IsAppendedTo) {
  std::string path = testing::TempDir() + "sirtaki_log_XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  Config config;
  config.log.file = path;
  config.log.level = "info";
  config.log.timestamps = false;
  for (const Rank rank : {0, 1}) {
    auto log = Logger::create(config, rank);
    ASSERT_TRUE(log) << log.status().to_string();
    (*log)->info("hello");
  }
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "sirtaki[0] info: hello\nsirtaki[1] info: hello\n");
  ::unlink(path.c_str());
}

TEST(LogFile, ThatCannotBeOpenedIsNamed) {
  Config config;
  config.log.file = "/nonexistent/folder/x.log";
  const auto log = Logger::create(config, 0);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.status().code(), Code::kUnavailable);
  EXPECT_NE(log.status().text().find("/nonexistent/folder/x.log"), std::string_view::npos);
}

TEST(LogDescriptor, IsDuplicatedAndNeverBlocks) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK), 0);
  Config config;
  config.log.fd = pipe[1];
  config.log.file = "/nonexistent/folder/x.log";  // not opened
  config.log.timestamps = false;
  const auto log = Logger::create(config, 0);
  ASSERT_TRUE(log) << log.status().to_string();
  ::close(pipe[1]);
  (*log)->error("first");
  std::array<char, 64> read{};
  const ssize_t length = ::read(pipe[0], read.data(), read.size());
  EXPECT_EQ(std::string_view(read.data(), static_cast<std::size_t>(length)), "sirtaki[0] error: first\n");
  for (int i = 0; i < 100; ++i) {
    (*log)->error(std::string(4000, 'x'));  // more than a pipe takes
  }
  ::close(pipe[0]);
}

TEST(LogDescriptor, ThatIsNotOpenIsNamed) {
  Config config;
  config.log.fd = 1'000'000;
  const auto log = Logger::create(config, 0);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.status().code(), Code::kUnavailable);
  EXPECT_NE(log.status().text().find("1000000"), std::string_view::npos);
}

TEST(LogLevelNames, RoundTrip) {
  for (const LogLevel level :
       {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError, LogLevel::kOff}) {
    EXPECT_EQ(log_level_from_name(log_level_name(level)), level);
  }
  EXPECT_EQ(log_level_from_name("nonsense"), LogLevel::kWarn);
}

}  // namespace
}  // namespace sirtaki
