#include "runtime/base/telemetry/trace_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/json.h"

namespace sirtaki {
namespace {

constexpr std::string_view kTail = "\n]\n";

// Returns a time in microseconds, the unit of the viewer, with three decimals that keep the nanoseconds.
std::string microseconds(std::int64_t nanoseconds) {
  const bool negative = nanoseconds < 0;
  const std::int64_t size = negative ? -nanoseconds : nanoseconds;
  std::string fraction = std::to_string(size % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return (negative ? "-" : "") + std::to_string(size / 1000) + "." + fraction;
}

std::string microseconds(TimePoint time, Duration offset) {
  return microseconds((time - offset).time_since_epoch().count());
}

// Returns {"ph":"X","pid":1,"tid":2, the beginning of every event.
std::string event_head(std::string_view phase, Rank rank, int thread) {
  return "{\"ph\":\"" + std::string(phase) + "\",\"pid\":" + std::to_string(rank) +
         ",\"tid\":" + std::to_string(thread);
}

Status write_error(const std::string& path) {
  return unavailable("cannot write the trace " + path + ": " + std::strerror(errno) + "; see the option timeline.path");
}

bool write_at(int fd, std::string_view text, std::int64_t offset) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return write_error(path);
  }
  std::unique_ptr<TraceWriter> writer(new TraceWriter(path, fd));
  writer->buffer_ = "[";
  SRT_TRY(writer->flush());
  return writer;
}

TraceWriter::~TraceWriter() {
  ::close(fd_);
}

Status TraceWriter::add(const TimelineChunk& chunk, Duration clock_offset) {
  if (!status_.ok()) {
    return status_;
  }
  offset_ = clock_offset;
  Process& process = process_of(chunk);
  for (const auto& name : chunk.names) {
    process.names[name.id] = name.text;
  }
  for (const auto& track : chunk.tracks) {
    add_track(chunk.rank, process, track);
  }
  status_ = flush();
  return status_;
}

TraceWriter::Process& TraceWriter::process_of(const TimelineChunk& chunk) {
  const auto [entry, added] = processes_.try_emplace(chunk.rank);
  if (added) {
    const std::string rank = chunk.rank < 0 ? "coordinator" : "rank " + std::to_string(chunk.rank);
    add_metadata(chunk.rank, 0, "process_name", chunk.process.empty() ? rank : rank + " (" + chunk.process + ")");
    append(event_head("M", chunk.rank, 0) +
           ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(chunk.rank) + "}}");
  }
  return entry->second;
}

void TraceWriter::add_track(Rank rank, Process& process, const TimelineChunk::TrackPart& track) {
  for (const Span& span : track.spans) {
    Lane& lane = lane_for(rank, process, track, span);
    lane.end = std::max(lane.end, span.end);
    latest_ = std::max(latest_, span.end - offset_);
    add_span(rank, process, span, lane.thread);
  }
  add_drops(rank, process, track);
}

// Returns a thread of the trace that is free at the beginning of `span`, since spans of one thread must not overlap.
// Spans arrive in the order of their ends, so a thread is free if its last span ended before the new one begins.
TraceWriter::Lane& TraceWriter::lane_for(Rank rank, Process& process, const TimelineChunk::TrackPart& track,
                                         const Span& span) {
  std::vector<Lane>& lanes = process.lanes[track.id];
  for (Lane& lane : lanes) {
    if (lane.end <= span.begin) {
      return lane;
    }
  }
  if (lanes.size() >= kMaxLanes) {
    return lanes.back();
  }
  lanes.push_back({process.next_thread++, TimePoint::min()});
  const std::string number = lanes.size() == 1 ? "" : " (" + std::to_string(lanes.size()) + ")";
  add_metadata(rank, lanes.back().thread, "thread_name", track.name + number);
  return lanes.back();
}

void TraceWriter::add_span(Rank rank, const Process& process, const Span& span, int thread) {
  const auto name = process.names.find(span.name);
  std::string event = event_head("X", rank, thread) + ",\"ts\":" + microseconds(span.begin, offset_) +
                      ",\"dur\":" + microseconds((span.end - span.begin).count()) + ",\"cat\":\"" +
                      std::string(stage_name(span.stage)) + "\",\"name\":";
  append_json_string(event, name == process.names.end() ? "(unnamed)" : std::string_view(name->second));
  JsonWriter args;
  args.begin_object();
  args.key("stage").value(stage_name(span.stage));
  if (span.position >= 0) {
    args.key("position").value(span.position);
  }
  if (span.bytes >= 0) {
    args.key("bytes").value(span.bytes);
  }
  args.end_object();
  append(event + ",\"args\":" + args.text() + "}");
}

void TraceWriter::add_drops(Rank rank, Process& process, const TimelineChunk::TrackPart& track) {
  if (track.dropped == 0) {
    return;
  }
  std::uint64_t& total = process.dropped[track.id];
  total += track.dropped;
  const Span now{.begin = latest_ + offset_, .end = latest_ + offset_};
  const int thread = lane_for(rank, process, track, now).thread;
  append(event_head("i", rank, thread) + ",\"s\":\"t\",\"ts\":" + microseconds(latest_, Duration{}) +
         ",\"name\":\"dropped spans\",\"args\":{\"dropped\":" + std::to_string(track.dropped) +
         ",\"total\":" + std::to_string(total) + "}}");
}

void TraceWriter::add_metadata(Rank rank, int thread, std::string_view kind, std::string_view name) {
  std::string event = event_head("M", rank, thread) + ",\"name\":\"" + std::string(kind) + "\",\"args\":{\"name\":";
  append_json_string(event, name);
  append(event + "}}");
}

void TraceWriter::append(std::string_view event) {
  buffer_ += first_ ? "\n" : ",\n";
  buffer_ += event;
  first_ = false;
}

// Replaces the closing bracket by the new events and a new bracket in one write, so that the file stays complete JSON.
Status TraceWriter::flush() {
  if (buffer_.empty()) {
    return {};
  }
  const auto size = static_cast<std::int64_t>(buffer_.size());
  buffer_ += kTail;
  if (!write_at(fd_, buffer_, end_)) {
    Status status = write_error(path_);
    // Restores the last complete text, as far as possible: the first error is reported in any case.
    if (::ftruncate(fd_, end_) == 0) {
      (void)write_at(fd_, kTail, end_);
    }
    return status;
  }
  end_ += size;
  buffer_.clear();
  return {};
}

}  // namespace sirtaki
