#include "launcher/output.h"

#include <algorithm>

namespace sirtaki::launcher {

namespace {

constexpr std::array<std::string_view, 6> kColours = {"\x1b[36m", "\x1b[32m", "\x1b[35m",
                                                      "\x1b[34m", "\x1b[33m", "\x1b[96m"};
constexpr std::string_view kErrorColour = "\x1b[31m";
constexpr std::string_view kPlain = "\x1b[0m";

int digits(int value) {
  return static_cast<int>(std::to_string(std::max(0, value)).size());
}

}  // namespace

std::size_t utf8_prefix(std::string_view text) {
  // Only the last three bytes can belong to an incomplete character.
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) {
      continue;
    }
    const std::size_t needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needs > back ? text.size() - back : text.size();
  }
  return text.size();
}

OutputMux::OutputMux(int ranks, OutputOptions options, Sink sink, Clock clock)
    : options_(options),
      sink_(std::move(sink)),
      clock_(std::move(clock)),
      width_(digits(ranks - 1)),
      sources_(static_cast<std::size_t>(ranks)),
      tails_(static_cast<std::size_t>(ranks)) {}

OutputMux::Source& OutputMux::source(Rank rank, OutputStream stream) {
  return sources_.at(static_cast<std::size_t>(rank)).at(static_cast<std::size_t>(stream));
}

void OutputMux::feed(Rank rank, OutputStream stream, std::string_view bytes) {
  Source& from = source(rank, stream);
  if (stream == OutputStream::kStderr) {
    record_tail(tails_.at(static_cast<std::size_t>(rank)), bytes);
  }
  while (!bytes.empty()) {
    if (from.after_cr && bytes.front() == '\n') {
      // The line was shown with its '\r' already, so this '
      // ' only finishes it, if it still stands there.
      from.after_cr = false;
      int& open_line = open_line_.at(static_cast<std::size_t>(screen_of(stream)));
      if (open_line == 2 * rank + static_cast<int>(stream)) {
        open_line = -1;
        sink_(stream, "\n");
      }
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      from.held.append(bytes);
      from.fresh = true;
      from.after_cr = from.after_cr && from.held.empty();
      break;
    }
    from.held.append(bytes.substr(0, end));
    const std::size_t ends = bytes.substr(end, 2) == "\r\n" ? 2 : 1;
    const std::string text = std::exchange(from.held, {});
    show(rank, stream, text, bytes.substr(end, ends));
    from.after_cr = ends == 1 && bytes[end] == '\r';
    bytes.remove_prefix(end + ends);
  }
  if (from.held.size() > kMaxHeld) {
    show_partial(rank, stream, false);
  }
}

// Shows one piece of a line and its end: "
// ", "\r", "\r
// ", or "" for an unfinished line.
void OutputMux::show(Rank rank, OutputStream stream, std::string_view text, std::string_view line_end) {
  Source& from = source(rank, stream);
  int& open_line = open_line_.at(static_cast<std::size_t>(screen_of(stream)));
  const int self = 2 * rank + static_cast<int>(stream);
  std::string out;
  if (open_line >= 0 && open_line != self) {
    out += '\n';
  }
  const bool continues = from.shown && open_line == self;
  // A lone '\r' returns to the start of the line that stands there (progress bars begin with it).
  const bool bare_return = text.empty() && line_end == "\r";
  if (!continues && !bare_return) {
    out += tag(rank, stream);
  }
  out += text;
  out += line_end;
  const bool finished = line_end.ends_with('\n');
  const bool returned = line_end == "\r";
  open_line = finished || (bare_return && open_line != self) ? -1 : self;
  from.shown = !finished && !returned;
  sink_(stream, std::move(out));
}

void OutputMux::show_partial(Rank rank, OutputStream stream, bool everything) {
  Source& from = source(rank, stream);
  const std::size_t size = everything ? from.held.size() : utf8_prefix(from.held);
  if (size == 0) {
    return;
  }
  const std::string text = from.held.substr(0, size);
  from.held.erase(0, size);
  show(rank, stream, text, "");
}

bool OutputMux::pending() const {
  const auto to_show = [](const Source& from) {
    return !from.held.empty() && (from.fresh || utf8_prefix(from.held) > 0);
  };
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const auto& pair) { return to_show(pair[0]) || to_show(pair[1]); });
}

void OutputMux::flush() {
  for (std::size_t rank = 0; rank < sources_.size(); ++rank) {
    for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
      // A line that still arrives in pieces would be torn apart by the next rank's line.
      if (!std::exchange(source(static_cast<Rank>(rank), stream).fresh, false)) {
        show_partial(static_cast<Rank>(rank), stream, false);
      }
    }
  }
}

void OutputMux::finish(Rank rank) {
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    show_partial(rank, stream, true);
    int& open_line = open_line_.at(static_cast<std::size_t>(screen_of(stream)));
    if (options_.tags && open_line == 2 * rank + static_cast<int>(stream)) {
      sink_(stream, "\n");
      open_line = -1;
    }
  }
}

void OutputMux::own_line(std::string_view text) {
  int& open_line = open_line_.at(static_cast<std::size_t>(screen_of(OutputStream::kStderr)));
  std::string out = open_line >= 0 ? "\n" : "";
  open_line = -1;
  out += text;
  out += '\n';
  sink_(OutputStream::kStderr, std::move(out));
}

std::string OutputMux::tag(Rank rank, OutputStream stream) const {
  std::string out;
  if (options_.timestamps) {
    out += clock_() + " ";
  }
  if (!options_.tags) {
    return out;
  }
  const std::string number = std::to_string(rank);
  std::string mark = "[" + std::string(static_cast<std::size_t>(width_) - number.size(), ' ') + number;
  mark += stream == OutputStream::kStderr ? "!] " : "] ";
  if (!options_.colour) {
    return out + mark;
  }
  const std::string_view colour =
      stream == OutputStream::kStderr ? kErrorColour : kColours.at(static_cast<std::size_t>(rank) % kColours.size());
  return out + std::string(colour) + mark + std::string(kPlain);
}

void OutputMux::record_tail(Tail& tail, std::string_view bytes) {
  while (!bytes.empty()) {
    if (tail.after_cr) {
      // Text after a lone '\r' overwrites the line, as it does on a screen.
      tail.after_cr = false;
      if (bytes.front() != '\n') {
        tail.open.clear();
      }
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    tail.open.append(bytes.substr(0, end));
    if (tail.open.size() > kTailBytes) {
      tail.open.erase(0, tail.open.size() - kTailBytes);
    }
    if (end == std::string_view::npos) {
      return;
    }
    if (bytes[end] == '\r') {
      tail.after_cr = true;
    } else {
      tail.lines.push_back(std::exchange(tail.open, {}));
      if (tail.lines.size() > kTailLines) {
        tail.lines.pop_front();
      }
    }
    bytes.remove_prefix(end + 1);
  }
}

std::vector<std::string> OutputMux::tail(Rank rank) const {
  const Tail& tail = tails_.at(static_cast<std::size_t>(rank));
  std::vector<std::string> lines(tail.lines.begin(), tail.lines.end());
  if (!tail.open.empty()) {
    lines.push_back(tail.open);
  }
  if (lines.size() > kTailLines) {
    lines.erase(lines.begin());
  }
  return lines;
}

}  // namespace sirtaki::launcher
