#include "runtime/base/telemetry/trace_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/unit/base/json_check.h"

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

class TraceWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "sirtaki_trace_XXXXXX";
    const int fd = ::mkstemp(path_.data());
    ASSERT_GE(fd, 0);
    ::close(fd);
    auto writer = TraceWriter::open(path_);
    ASSERT_TRUE(writer) << writer.status().to_string();
    writer_ = std::move(writer).value();
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  std::string text() const {
    std::ostringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }

  static int count(const std::string& text, std::string_view part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++n;
    }
    return n;
  }

  static TimelineChunk chunk(Rank rank, std::vector<Span> spans) {
    TimelineChunk chunk;
    chunk.rank = rank;
    chunk.process = "host";
    chunk.names = {{1, "weight \"0\""}};
    chunk.tracks.push_back({.id = 0, .name = "loop", .dropped = 0, .spans = std::move(spans)});
    return chunk;
  }

  static Span span(Duration begin, Duration end) {
    return {.name = 1,
            .stage = Stage::kReduce,
            .position = 7,
            .bytes = 4096,
            .begin = TimePoint(begin),
            .end = TimePoint(end)};
  }

  std::string path_;
  std::unique_ptr<TraceWriter> writer_;
};

TEST_F(TraceWriterTest, FileIsValidJsonFromTheFirstByteOn) {
  EXPECT_TRUE(is_valid_json(text())) << text();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(writer_->add(chunk(i % 2, {span(i * 1ms, i * 1ms + 10us)}), 0s).ok());
    EXPECT_TRUE(is_valid_json(text())) << text();
  }
  EXPECT_EQ(count(text(), "\"ph\":\"X\""), 5);
}

TEST_F(TraceWriterTest, SpanHasTimesNameStagePositionAndBytes) {
  ASSERT_TRUE(writer_->add(chunk(2, {span(1234567ns, 2234569ns)}), 0s).ok());
  EXPECT_NE(text().find(R"({"ph":"X","pid":2,"tid":1,"ts":1234.567,"dur":1000.002,"cat":"reduce",)"
                        R"("name":"weight \"0\"","args":{"stage":"reduce","position":7,"bytes":4096}})"),
            std::string::npos)
      << text();
  EXPECT_NE(text().find(R"-({"ph":"M","pid":2,"tid":0,"name":"process_name","args":{"name":"rank 2 (host)"}})-"),
            std::string::npos);
  EXPECT_NE(text().find(R"-({"ph":"M","pid":2,"tid":1,"name":"thread_name","args":{"name":"loop"}})-"),
            std::string::npos);
}

TEST_F(TraceWriterTest, ClocksOfTheRanksAreAligned) {
  // The same instant, read from clocks 5 s apart.
  ASSERT_TRUE(writer_->add(chunk(0, {span(10s, 11s)}), 0s).ok());
  ASSERT_TRUE(writer_->add(chunk(1, {span(15s, 16s)}), 5s).ok());
  ASSERT_TRUE(writer_->add(chunk(2, {span(7s, 8s)}), -3s).ok());
  EXPECT_EQ(count(text(), "\"ts\":10000000.000,\"dur\":1000000.000"), 3) << text();
}

TEST_F(TraceWriterTest, TimesBeforeZeroKeepTheirSign) {
  ASSERT_TRUE(writer_->add(chunk(0, {span(1us, 2us)}), 1001500ns).ok());
  EXPECT_NE(text().find("\"ts\":-1000.500"), std::string::npos) << text();
}

TEST_F(TraceWriterTest, OverlappingSpansGoToFurtherThreads) {
  // Spans are recorded in the order of their ends.
  ASSERT_TRUE(writer_->add(chunk(0, {span(5us, 6us), span(0us, 10us), span(11us, 12us), span(10us, 13us)}), 0s).ok());
  const std::string json = text();
  EXPECT_EQ(count(json, "\"thread_name\""), 2);
  EXPECT_NE(json.find("\"name\":\"loop (2)\""), std::string::npos);
  EXPECT_NE(json.find("\"tid\":1,\"ts\":5.000"), std::string::npos);
  EXPECT_NE(json.find("\"tid\":2,\"ts\":0.000"), std::string::npos);
  EXPECT_NE(json.find("\"tid\":1,\"ts\":11.000"), std::string::npos);
  EXPECT_NE(json.find("\"tid\":2,\"ts\":10.000"), std::string::npos);
}

TEST_F(TraceWriterTest, DroppedSpansAreShownWithTheirTotal) {
  TimelineChunk part = chunk(0, {span(1us, 2us)});
  part.tracks[0].dropped = 5;
  ASSERT_TRUE(writer_->add(part, 0s).ok());
  part.tracks[0].spans.clear();
  part.tracks[0].dropped = 2;
  ASSERT_TRUE(writer_->add(part, 0s).ok());
  EXPECT_NE(text().find(R"("args":{"dropped":5,"total":5})"), std::string::npos);
  EXPECT_NE(text().find(R"("args":{"dropped":2,"total":7})"), std::string::npos);
  EXPECT_TRUE(is_valid_json(text()));
}

TEST_F(TraceWriterTest, UnknownNamesAndHostileTextsStayValid) {
  TimelineChunk part = chunk(0, {span(1us, 2us)});
  part.process = "\"}],\xFF\n";
  part.tracks[0].name = "\\\"";
  part.tracks[0].spans[0].name = 99;
  ASSERT_TRUE(writer_->add(part, 0s).ok());
  EXPECT_TRUE(is_valid_json(text())) << text();
  EXPECT_NE(text().find("(unnamed)"), std::string::npos);
}

TEST_F(TraceWriterTest, SpansWithoutPositionOrBytesDoNotShowThem) {
  TimelineChunk part = chunk(-1, {{.name = 1, .stage = Stage::kControl}});
  ASSERT_TRUE(writer_->add(part, 0s).ok());
  EXPECT_NE(text().find(R"("args":{"stage":"control"}})"), std::string::npos);
  EXPECT_NE(text().find("coordinator (host)"), std::string::npos);
}

TEST(TraceWriter, FileThatCannotBeMadeIsNamed) {
  const auto writer = TraceWriter::open("/nonexistent/folder/trace.json");
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.status().code(), Code::kUnavailable);
  EXPECT_NE(writer.status().text().find("/nonexistent/folder/trace.json"), std::string_view::npos);
}

TEST(TraceWriter, FullDiskIsAnErrorThatStays) {
  auto writer = TraceWriter::open("/dev/full");
  ASSERT_FALSE(writer);
  EXPECT_NE(writer.status().text().find("No space left"), std::string_view::npos);
}

}  // namespace
}  // namespace sirtaki
