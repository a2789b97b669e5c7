#include "launcher/output.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "launcher/agent/output_writer.h"

namespace sirtaki::launcher {
namespace {

class Screen {
 public:
  explicit Screen(int ranks, OutputOptions options = {})
      : mux(
            ranks, options,
            [this](OutputStream stream, const std::string& bytes) {
              (stream == OutputStream::kStdout ? out : err) += bytes;
              both += bytes;
            },
            [] { return std::string("12:00:00.000"); }) {}
  // Acts like the flush after a short silence.
  void flush() {
    mux.flush();
    mux.flush();
  }
  std::string out, err, both;
  OutputMux mux;
};

TEST(OutputMux, TagsLinesByRankAndStream) {
  Screen screen(2);
  screen.mux.feed(0, OutputStream::kStdout, "hello\nworld\n");
  screen.mux.feed(1, OutputStream::kStderr, "oh\n");
  EXPECT_EQ(screen.out, "[0] hello\n[0] world\n");
  EXPECT_EQ(screen.err, "[1!] oh\n");
}

TEST(OutputMux, AlignsTagsOfManyRanks) {
  Screen screen(12);
  screen.mux.feed(3, OutputStream::kStdout, "a\n");
  screen.mux.feed(11, OutputStream::kStdout, "b\n");
  EXPECT_EQ(screen.out, "[ 3] a\n[11] b\n");
}

TEST(OutputMux, WaitsForTheEndOfALine) {
  Screen screen(2);
  screen.mux.feed(0, OutputStream::kStdout, "one ");
  screen.mux.feed(1, OutputStream::kStdout, "two ");
  EXPECT_EQ(screen.out, "");
  EXPECT_TRUE(screen.mux.pending());
  screen.mux.feed(0, OutputStream::kStdout, "line\n");
  screen.mux.feed(1, OutputStream::kStdout, "lines\n");
  EXPECT_EQ(screen.out, "[0] one line\n[1] two lines\n");
  EXPECT_FALSE(screen.mux.pending());
}

TEST(OutputMux, ShowsUnfinishedLinesOnFlushAndGoesOnWhereItWas) {
  Screen screen(2);
  screen.mux.feed(0, OutputStream::kStdout, "loading");
  screen.flush();
  EXPECT_EQ(screen.out, "[0] loading");
  screen.mux.feed(0, OutputStream::kStdout, "...done\n");
  EXPECT_EQ(screen.out, "[0] loading...done\n");
}

TEST(OutputMux, DoesNotTearALineThatIsStillComing) {
  Screen screen(2);
  screen.mux.feed(0, OutputStream::kStdout, "12");
  screen.mux.flush();
  screen.mux.feed(0, OutputStream::kStdout, "34");
  screen.mux.flush();
  screen.mux.feed(1, OutputStream::kStdout, "x\n");
  screen.mux.feed(0, OutputStream::kStdout, "56\n");
  EXPECT_EQ(screen.out, "[1] x\n[0] 123456\n");
}

TEST(OutputMux, KeepsAnotherRankOffAnUnfinishedLine) {
  Screen screen(2);
  screen.mux.feed(0, OutputStream::kStdout, "loading");
  screen.flush();
  screen.mux.feed(1, OutputStream::kStdout, "x\n");
  screen.mux.feed(0, OutputStream::kStdout, "...done\n");
  EXPECT_EQ(screen.out, "[0] loading\n[1] x\n[0] ...done\n");
}

TEST(OutputMux, OneTerminalKeepsTheStreamsApartToo) {
  Screen screen(1, {.one_terminal = true});
  screen.mux.feed(0, OutputStream::kStdout, "50%");
  screen.flush();
  screen.mux.feed(0, OutputStream::kStderr, "warning\n");
  EXPECT_EQ(screen.both, "[0] 50%\n[0!] warning\n");
}

TEST(OutputMux, KeepsProgressLines) {
  Screen screen(1);
  screen.mux.feed(0, OutputStream::kStderr, "10%\r20%\r");
  EXPECT_EQ(screen.err, "[0!] 10%\r[0!] 20%\r");
  screen.mux.feed(0, OutputStream::kStderr, "done\n");
  EXPECT_EQ(screen.err, "[0!] 10%\r[0!] 20%\r[0!] done\n");
}

TEST(OutputMux, TakesACarriageReturnAndItsNewlineForOneLineEnd) {
  Screen screen(1);
  screen.mux.feed(0, OutputStream::kStdout, "a\r\nb\r");
  screen.mux.feed(0, OutputStream::kStdout, "\nc\n");
  EXPECT_EQ(screen.out, "[0] a\r\n[0] b\r\n[0] c\n");
}

TEST(OutputMux, KeepsEveryByteEvenIfItIsNoText) {
  Screen screen(1, {.tags = false});
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    bytes += static_cast<char>(i);
  }
  bytes += '\n';
  for (const char c : bytes) {
    screen.mux.feed(0, OutputStream::kStdout, std::string_view(&c, 1));
    screen.flush();
  }
  screen.mux.finish(0);
  EXPECT_EQ(screen.out, bytes);
}

TEST(OutputMux, FlushDoesNotCutACharacter) {
  Screen screen(1);
  screen.mux.feed(0, OutputStream::kStdout, "gr\xc3");
  screen.flush();
  EXPECT_EQ(screen.out, "[0] gr");
  EXPECT_FALSE(screen.mux.pending());
  screen.mux.feed(0, OutputStream::kStdout, "\xbc\xc3\x9f\n");
  EXPECT_EQ(screen.out, "[0] gr\xc3\xbc\xc3\x9f\n");
}

TEST(OutputMux, FinishShowsTheRestAndEndsTheLine) {
  Screen screen(2);
  screen.mux.feed(0, OutputStream::kStdout, "no newline");
  screen.mux.feed(1, OutputStream::kStdout, "cut \xe2\x82");
  screen.mux.finish(0);
  screen.mux.finish(1);
  EXPECT_EQ(screen.out, "[0] no newline\n[1] cut \xe2\x82\n");
}

TEST(OutputMux, ShowsVeryLongLinesInParts) {
  Screen screen(1);
  screen.mux.feed(0, OutputStream::kStdout, std::string(OutputMux::kMaxHeld + 1, 'x'));
  EXPECT_EQ(screen.out.size(), OutputMux::kMaxHeld + 1 + 4);
}

TEST(OutputMux, WithoutTagsAddsNothing) {
  Screen screen(1, {.tags = false});
  screen.mux.feed(0, OutputStream::kStdout, "a\nb");
  screen.mux.finish(0);
  EXPECT_EQ(screen.out, "a\nb");
}

TEST(OutputMux, PutsTheTimeInFront) {
  Screen screen(1, {.timestamps = true});
  screen.mux.feed(0, OutputStream::kStdout, "a\n");
  EXPECT_EQ(screen.out, "12:00:00.000 [0] a\n");
}

TEST(OutputMux, RemembersTheLastLinesOfStandardError) {
  Screen screen(1);
  for (int i = 0; i < 30; ++i) {
    screen.mux.feed(0, OutputStream::kStderr, "line " + std::to_string(i) + "\n");
  }
  screen.mux.feed(0, OutputStream::kStderr, "10%\r99%\r\nlast");
  const auto tail = screen.mux.tail(0);
  ASSERT_EQ(tail.size(), OutputMux::kTailLines);
  EXPECT_EQ(tail.back(), "last");
  EXPECT_EQ(tail[tail.size() - 2], "99%");
  EXPECT_EQ(tail[tail.size() - 3], "line 29");
}

TEST(Utf8Prefix, StopsBeforeAnUnfinishedCharacterOnly) {
  EXPECT_EQ(utf8_prefix("abc"), 3U);
  EXPECT_EQ(utf8_prefix("a\xc3"), 1U);
  EXPECT_EQ(utf8_prefix("a\xc3\xbc"), 3U);
  EXPECT_EQ(utf8_prefix("\xf0\x9f\x98"), 0U);
  EXPECT_EQ(utf8_prefix("\xf0\x9f\x98\x80"), 4U);
  EXPECT_EQ(utf8_prefix("\x80\x80\x80\x80"), 4U);  // not text: no character to wait for
  EXPECT_EQ(utf8_prefix(""), 0U);
}

TEST(RankFiles, OnePerRankAndStreamWithLeadingZeros) {
  std::string pattern = ::testing::TempDir() + "sirtaki_rank_files_XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  {
    auto files = RankFiles::create(pattern + "/out", 11, 12);
    ASSERT_TRUE(files);
    EXPECT_FALSE(std::filesystem::exists(pattern + "/out/rank.11"));
    EXPECT_TRUE(files->write(11, OutputStream::kStdout, "late").ok());
    EXPECT_TRUE(files->write(3, OutputStream::kStderr, "text").ok());
  }
  std::ifstream file(pattern + "/out/rank.03/stderr");
  std::stringstream content;
  content << file.rdbuf();
  EXPECT_EQ(content.str(), "text");
  EXPECT_TRUE(std::filesystem::exists(pattern + "/out/rank.10/stdout"));
  EXPECT_EQ(std::filesystem::file_size(pattern + "/out/rank.11/stdout"), 4U);
  std::filesystem::remove_all(pattern);
}

TEST(RankFiles, SaysWhichFileCannotBeWritten) {
  const auto files = RankFiles::create("/proc/none", 1, 1);
  ASSERT_FALSE(files);
  EXPECT_NE(files.status().text().find("/proc/none/rank.0/stdout"), std::string_view::npos);
}

}  // namespace
}  // namespace sirtaki::launcher
