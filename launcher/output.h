// Output: from the bytes that ranks write to tagged lines on the terminal, files per rank and the last lines of each.
//
// OutputMux is a pure state machine: bytes in, bytes for standard output and standard error out through a sink. It
// keeps every byte of the ranks, valid text or not, and only adds tags and the line ends that keep two ranks apart.
// One thread. Files are written through RankFiles (rank_files.h), the terminal through OutputWriter (output_writer.h).
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
  bool one_terminal = false;  // both streams end on the same screen, so an unfinished line of one hinders the other
};

class OutputMux {
 public:
  using Sink = std::function<void(OutputStream, std::string)>;
  using Clock = std::function<std::string()>;  // text of the present time, for OutputOptions::timestamps

  OutputMux(int ranks, OutputOptions options, Sink sink, Clock clock);

  // Whole lines (ended by '\n', '\r' or "\r\n") go out at once; the rest waits for its end or for flush().
  void feed(Rank rank, OutputStream stream, std::string_view bytes);
  // There is an unfinished line for flush() to show, now or the next time.
  bool pending() const;
  // Shows unfinished lines that have not grown since the last flush(), up to their last whole UTF-8 character.
  void flush();
  // The rank writes no more: shows what is left.
  void finish(Rank rank);
  // A line of the launcher's own, on standard error. The line end is added.
  void own_line(std::string_view text);
  // The last lines of the rank's standard error, oldest first, without line ends; at most kTailLines.
  std::vector<std::string> tail(Rank rank) const;

  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kTailBytes = 4096;                 // a line; longer ones lose their beginning
  static constexpr std::size_t kMaxHeld = std::size_t{64} << 10;  // an unfinished line longer than this is shown

 private:
  struct Source {
    std::string held;       // of the current line, not shown yet
    bool shown = false;     // a part of the current line has been shown
    bool fresh = false;     // `held` has grown since the last flush()
    bool after_cr = false;  // a '\n' now belongs to the '\r' before
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
  int width_;  // of the widest rank number
  std::vector<std::array<Source, 2>> sources_;
  std::vector<Tail> tails_;
  std::array<int, 2> open_line_{-1, -1};  // per screen: 2 * rank + stream whose unfinished line stands there
};

// Length of the longest prefix of `text` that does not end inside a UTF-8 character.
std::size_t utf8_prefix(std::string_view text);

}  // namespace sirtaki::launcher
