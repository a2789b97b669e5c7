#include "runtime/base/telemetry/timeline.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"

namespace sirtaki {
namespace {

constexpr std::uint8_t kChunkVersion = 1;
constexpr std::size_t kSpanBytes = 4 + 1 + 4 + 8 + 8 + 8;
constexpr std::size_t kNameBytes = 4 + 4;
constexpr std::size_t kTrackBytes = 4 + 4 + 8 + 4;

constexpr std::array<std::string_view, kStageCount> kStageNames = {"user",   "submit",  "negotiate", "queue",  "pack",
                                                                   "encode", "network", "reduce",    "decode", "unpack",
                                                                   "wait",   "control", "need"};

void put_span(WireWriter& writer, const Span& span) {
  writer.put(span.name);
  writer.put(span.stage);
  writer.put(span.position);
  writer.put(span.bytes);
  writer.put(static_cast<std::int64_t>(span.begin.time_since_epoch().count()));
  writer.put(static_cast<std::int64_t>(span.end.time_since_epoch().count()));
}

Span get_span(WireReader& reader) {
  Span span;
  span.name = reader.get<std::uint32_t>();
  const auto stage = reader.get<std::uint8_t>();
  if (stage >= kStageCount) {
    reader.fail();
  }
  span.stage = static_cast<Stage>(stage);
  span.position = reader.get<std::int32_t>();
  span.bytes = reader.get<std::int64_t>();
  span.begin = TimePoint(Duration(reader.get<std::int64_t>()));
  span.end = TimePoint(Duration(reader.get<std::int64_t>()));
  // Within these limits, the difference of two times cannot overflow.
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max() / 4;
  const auto outside = [](TimePoint time) {
    return time.time_since_epoch().count() < -kLimit || time.time_since_epoch().count() > kLimit;
  };
  if (span.end < span.begin || outside(span.begin) || outside(span.end)) {
    reader.fail();
  }
  return span;
}

}  // namespace

std::string_view stage_name(Stage stage) {
  return kStageNames.at(static_cast<std::size_t>(stage));
}

Track::Track(std::uint32_t id, std::string name, std::size_t capacity)
    : id_(id), name_(std::move(name)), mask_(std::bit_ceil(std::max<std::size_t>(capacity, 2)) - 1), ring_(mask_ + 1) {}

bool Track::record(const Span& span) {
  const std::uint64_t head = head_.load(std::memory_order_relaxed);  // own index
  if (head - tail_.load(std::memory_order_acquire) > mask_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  ring_[static_cast<std::size_t>(head) & mask_] = span;
  head_.store(head + 1, std::memory_order_release);
  return true;
}

std::size_t Track::take(std::vector<Span>& out, std::size_t max) {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);  // own index
  const std::uint64_t ready = head_.load(std::memory_order_acquire) - tail;
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(ready, max));
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(ring_[static_cast<std::size_t>(tail + i) & mask_]);
  }
  tail_.store(tail + count, std::memory_order_release);
  return count;
}

std::vector<std::byte> encode(const TimelineChunk& chunk) {
  WireWriter writer;
  writer.put(kChunkVersion);
  writer.put(static_cast<std::int32_t>(chunk.rank));
  writer.put_string(chunk.process);
  writer.put(static_cast<std::uint32_t>(chunk.names.size()));
  for (const auto& name : chunk.names) {
    writer.put(name.id);
    writer.put_string(name.text);
  }
  writer.put(static_cast<std::uint32_t>(chunk.tracks.size()));
  for (const auto& track : chunk.tracks) {
    writer.put(track.id);
    writer.put_string(track.name);
    writer.put(track.dropped);
    writer.put(static_cast<std::uint32_t>(track.spans.size()));
    for (const Span& span : track.spans) {
      put_span(writer, span);
    }
  }
  return std::move(writer).take();
}

Result<TimelineChunk> decode_timeline_chunk(ConstBytes bytes) {
  WireReader reader(bytes);
  TimelineChunk chunk;
  if (reader.get<std::uint8_t>() != kChunkVersion) {
    reader.fail();
  }
  chunk.rank = reader.get<std::int32_t>();
  chunk.process = reader.get_string();
  chunk.names.resize(reader.get_count(kNameBytes));
  for (auto& name : chunk.names) {
    name.id = reader.get<std::uint32_t>();
    name.text = reader.get_string();
    if (name.id >= Timeline::kMaxNames) {
      reader.fail();
    }
  }
  chunk.tracks.resize(reader.get_count(kTrackBytes));
  for (auto& track : chunk.tracks) {
    track.id = reader.get<std::uint32_t>();
    if (track.id >= Timeline::kMaxTracks) {
      reader.fail();
    }
    track.name = reader.get_string();
    track.dropped = reader.get<std::uint64_t>();
    track.spans.resize(reader.get_count(kSpanBytes));
    for (Span& span : track.spans) {
      span = get_span(reader);
    }
  }
  SRT_TRY(reader.finish("timeline chunk"));
  return chunk;
}

Timeline::Timeline(Rank rank, std::string process) : rank_(rank), process_(std::move(process)), names_{"(other)"} {}

void Timeline::set_enabled(bool enabled) {
  const std::lock_guard lock(mutex_);
  if (enabled && !enabled_.load(std::memory_order_relaxed)) {
    names_sent_ = 0;
  }
  enabled_.store(enabled, std::memory_order_relaxed);
}

Track& Timeline::track(std::string name, std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  SRT_CHECK(tracks_.size() < kMaxTracks);
  tracks_.push_back(std::make_unique<Track>(static_cast<std::uint32_t>(tracks_.size()), std::move(name), capacity));
  return *tracks_.back();
}

std::uint32_t Timeline::name_id(std::string_view name) {
  name = name.substr(0, kMaxNameLength);
  const std::lock_guard lock(mutex_);
  if (const auto found = ids_.find(name); found != ids_.end()) {
    return found->second;
  }
  if (names_.size() >= kMaxNames) {
    return 0;
  }
  const auto id = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  ids_.emplace(name, id);
  return id;
}

void Timeline::collect_spans(TimelineChunk& chunk, std::vector<Track*>& tracks) {
  std::size_t room = kChunkBytes / kSpanBytes;
  for (Track* track : tracks) {
    TimelineChunk::TrackPart part;
    part.id = track->id_;
    part.name = track->name_;
    room -= track->take(part.spans, room);
    const std::uint64_t dropped = track->dropped();
    part.dropped = dropped - track->reported_drops_;
    track->reported_drops_ = dropped;
    if (part.dropped != 0 || !part.spans.empty()) {
      chunk.tracks.push_back(std::move(part));
    }
  }
}

bool Timeline::collect_names(TimelineChunk& chunk) {
  const std::lock_guard lock(mutex_);
  std::size_t room = kChunkBytes;
  for (; names_sent_ < names_.size(); ++names_sent_) {
    const std::string& name = names_[names_sent_];
    if (room < name.size() + kNameBytes) {
      return false;
    }
    room -= name.size() + kNameBytes;
    chunk.names.push_back({static_cast<std::uint32_t>(names_sent_), name});
  }
  return true;
}

std::vector<std::byte> Timeline::drain() {
  TimelineChunk chunk;
  chunk.rank = rank_;
  chunk.process = process_;
  // A span may use a new name, so spans wait until all names known before them have been sent.
  if (!collect_names(chunk)) {
    return encode(chunk);
  }
  std::vector<Track*> tracks;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& track : tracks_) {
      tracks.push_back(track.get());
    }
  }
  collect_spans(chunk, tracks);
  collect_names(chunk);
  if (chunk.tracks.empty() && chunk.names.empty()) {
    return {};
  }
  return encode(chunk);
}

}  // namespace sirtaki
