// Output: turns the bytes that ranks write into tagged lines on the terminal, files per rank and a tail of each rank.
//
// OutputMux is a pure state machine: bytes in, bytes for standard output and standard error out through a sink. It
// keeps every byte of the ranks, valid text or not, and only adds tags and the line ends that keep two ranks apart.
// Owned by Job; one thread. Files are written through RankFiles, the terminal through OutputWriter
// (agent/output_writer.h).
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/agent/agent_protocol.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct OutputOptions {
  bool tags = true;
  bool timestamps = false;
  bool colour = false;
  bool one_terminal = false;  // both streams end on the same screen, so an unfinished line of one affects the other
};

class OutputMux {
 public:
  using Sink = std::function<void(OutputStream, std::string)>;
  using Clock = std::function<std::string()>;  // returns the present time as text, for OutputOptions::timestamps

  OutputMux(int ranks, OutputOptions options, Sink sink, Clock clock);

  // Adds bytes of a rank. Whole lines (ended by '
  // ', '\r' or "\r
  // ") are shown at once; the rest waits for its end or flush().
  void feed(Rank rank, OutputStream stream, std::string_view bytes);
  // Returns whether an unfinished line is left for flush() to show, now or the next time.
  bool pending() const;
  // Shows unfinished lines that have not grown since the last flush(), up to their last whole UTF-8 character.
  void flush();
  // Shows the rest of the rank's output; the rank writes no more.
  void finish(Rank rank);
  // Shows a line of the launcher itself on standard error; adds the line end.
  void own_line(std::string_view text);
  // Returns the last lines of the rank's standard error, oldest first, without line ends; at most kTailLines.
  std::vector<std::string> tail(Rank rank) const;

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kTailBytes = 4096;  // bytes of one line; a longer line loses its beginning
  static constexpr std::size_t kMaxHeld = std::size_t{64} << 10;  // bytes; a longer unfinished line is shown

 private:
  struct Source {
    std::string held;       // bytes of the current line that are not shown yet
    bool shown = false;     // a part of the current line has been shown
    bool fresh = false;     // `held` has grown since the last flush()
    bool after_cr = false;  // a '\n' that comes next belongs to the '\r' before it
  };
  struct Tail {
    std::deque<std::string> lines;
    std::string open;
    bool after_cr = false;
  };

  void show(Rank rank, OutputStream stream, std::string_view text, std::string_view line_end);
  void show_partial(Rank rank, OutputStream stream, bool everything);
  std::string tag(Rank rank, OutputStream stream) const;
  void record_tail(Tail& tail, std::string_view bytes);
  Source& source(Rank rank, OutputStream stream);
  int screen_of(OutputStream stream) const { return options_.one_terminal ? 0 : static_cast<int>(stream); }

  OutputOptions options_;
  Sink sink_;
  Clock clock_;
  int width_;  // digits of the largest rank number
  std::vector<std::array<Source, 2>> sources_;
  std::vector<Tail> tails_;
  std::array<int, 2> open_line_{-1, -1};  // per screen: 2 * rank + stream of the unfinished line that stands there
};

// Returns the length of the longest prefix of `text` that does not end inside a UTF-8 character.
std::size_t utf8_prefix(std::string_view text);

}  // namespace sirtaki::launcher
