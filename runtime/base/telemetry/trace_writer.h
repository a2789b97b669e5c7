// TraceWriter: writes one Chrome/Perfetto JSON file from the chunks of all ranks.
//
// Owned by CoordinatorServer. Threads: one; add() formats and writes, so keep it off threads that must answer at once.
// The file is complete JSON after every add(), so a viewer opens it even if the process is killed later.
// A rank is a process of the trace, and a track is a thread; overlapping spans of a track get further threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/base/types.h"

namespace sirtaki {

class TraceWriter {
 public:
  // Creates or replaces the file; returns kUnavailable if that fails.
  static Result<std::unique_ptr<TraceWriter>> open(const std::string& path);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Subtracts `clock_offset`, the clock of the rank minus that of the coordinator, from every time. After an error of
  // writing, nothing more is written, and every call returns that error.
  Status add(const TimelineChunk& chunk, Duration clock_offset);
  const std::string& path() const { return path_; }

 private:
  struct Lane {
    int thread = 0;
    TimePoint end;
  };
  struct Process {
    std::map<std::uint32_t, std::string> names;
    std::map<std::uint32_t, std::vector<Lane>> lanes;  // key: id of the track
    std::map<std::uint32_t, std::uint64_t> dropped;    // spans dropped so far; key: id of the track
    int next_thread = 1;
  };
  static constexpr std::size_t kMaxLanes = 64;  // limit per track; further overlapping spans share the last lane

  TraceWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Process& process_of(const TimelineChunk& chunk);
  void add_track(Rank rank, Process& process, const TimelineChunk::TrackPart& track);
  void add_span(Rank rank, const Process& process, const Span& span, int thread);
  void add_drops(Rank rank, Process& process, const TimelineChunk::TrackPart& track);
  void add_metadata(Rank rank, int thread, std::string_view kind, std::string_view name);
  Lane& lane_for(Rank rank, Process& process, const TimelineChunk::TrackPart& track, const Span& span);
  void append(std::string_view event);
  Status flush();

  const std::string path_;
  const int fd_;
  std::int64_t end_ = 0;  // offset behind the last event
  bool first_ = true;
  Duration offset_{};  // clock offset of the current chunk
  TimePoint latest_;   // latest end of a span, for events without a time
  std::string buffer_;
  std::map<Rank, Process> processes_;
  Status status_;
};

}  // namespace sirtaki
