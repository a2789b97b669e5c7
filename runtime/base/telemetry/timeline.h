// Timeline: spans of the work of one rank, kept in a ring for each thread and delivered in chunks for the trace of the
// job.
//
// Owned by: Session (and CoordinatorServer for its own part). Each Track is written by one thread; record() takes no
// lock, allocates nothing and drops (and counts) the span when the ring is full. drain() is called by one thread at a
// time. Times are those of the monotonic clock of this process. Not for: writing files (trace_writer.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

// The category of a span in the trace. Part of the chunk format: append only.
enum class Stage : std::uint8_t {
  kUser = 0,       // a mark of the program
  kSubmit = 1,     // waiting in the inbox
  kNegotiate = 2,  // agreement with the other ranks
  kQueue = 3,      // ready, waiting for its turn or credit
  kPack = 4,       // copied into a fused buffer
  kEncode = 5,
  kNetwork = 6,
  kReduce = 7,
  kDecode = 8,
  kUnpack = 9,
  kWait = 10,     // a thread of the program waits
  kControl = 11,  // coordinator and rendezvous
  kNeed = 12,     // the program needs a result: an instant, or the time until it is ready
};
inline constexpr int kStageCount = 13;
std::string_view stage_name(Stage stage);  // "network"

struct Span {
  std::uint32_t name = 0;  // Timeline::name_id
  Stage stage = Stage::kUser;
  std::int32_t position = -1;  // position of the partition in its plan, or -1
  std::int64_t bytes = -1;     // -1 if there are none
  TimePoint begin{};
  TimePoint end{};  // same clock; not before begin
};

// The ring of one thread.
class Track {
 public:
  Track(std::uint32_t id, std::string name, std::size_t capacity);

  // Records a span on the owning thread; returns false if it is dropped.
  bool record(const Span& span);
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  const std::string& name() const { return name_; }

 private:
  friend class Timeline;
  // Moves up to `max` spans, oldest first, on the draining thread.
  std::size_t take(std::vector<Span>& out, std::size_t max);

  const std::uint32_t id_;
  const std::string name_;
  const std::size_t mask_;
  std::vector<Span> ring_;
  // Written by the recorder, read by the drainer (release, acquire: the span lies before its index).
  std::atomic<std::uint64_t> head_{0};
  // Written by the drainer, read by the recorder: the copy of a span is complete before its slot is free again.
  std::atomic<std::uint64_t> tail_{0};
  std::atomic<std::uint64_t> dropped_{0};  // relaxed: a count alone
  std::uint64_t reported_drops_ = 0;       // used by the draining thread only
};

// A decoded chunk.
struct TimelineChunk {
  struct Name {
    std::uint32_t id = 0;
    std::string text;
  };
  struct TrackPart {
    std::uint32_t id = 0;
    std::string name;
    std::uint64_t dropped = 0;  // since the previous chunk
    std::vector<Span> spans;
  };
  Rank rank = -1;
  std::string process;      // host and pid, for the name of the process in the trace
  std::vector<Name> names;  // new since the previous chunk
  std::vector<TrackPart> tracks;
};

std::vector<std::byte> encode(const TimelineChunk& chunk);
Result<TimelineChunk> decode_timeline_chunk(ConstBytes bytes);

class Timeline {
 public:
  static constexpr std::size_t kTrackCapacity = 8192;    // spans
  static constexpr std::size_t kChunkBytes = 64 * 1024;  // one chunk at most, about
  static constexpr std::size_t kMaxNames = 1U << 16;     // further names are all "(other)"
  static constexpr std::size_t kMaxTracks = 1024;
  static constexpr std::size_t kMaxNameLength = 256;  // longer names are cut

  Timeline(Rank rank, std::string process);

  // Any thread. While off, callers skip their clock readings and record nothing.
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Turning it on again sends all names anew, since the trace is another file.
  void set_enabled(bool enabled);

  // Any thread, at set-up. The track is valid as long as the Timeline; `capacity` is rounded up to a power of two.
  Track& track(std::string name, std::size_t capacity = kTrackCapacity);
  // Any thread, at the first use of a name.
  std::uint32_t name_id(std::string_view name);

  // Returns the next chunk, ready to send; empty if there are no spans. One thread at a time.
  std::vector<std::byte> drain();

 private:
  void collect_spans(TimelineChunk& chunk, std::vector<Track*>& tracks);
  bool collect_names(TimelineChunk& chunk);  // false if there are more names than fit into a chunk

  const Rank rank_;
  const std::string process_;
  std::atomic<bool> enabled_{false};                       // relaxed: a late reader records a few spans more or less
  std::mutex mutex_;                                       // tracks and names are made by several threads, rarely
  std::vector<std::unique_ptr<Track>> tracks_;             // guarded by mutex_
  std::map<std::string, std::uint32_t, std::less<>> ids_;  // guarded by mutex_
  std::vector<std::string> names_;                         // guarded by mutex_; index: id
  std::size_t names_sent_ = 0;                             // guarded by mutex_
};

}  // namespace sirtaki
