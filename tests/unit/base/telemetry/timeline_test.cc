#include "runtime/base/telemetry/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

Span span(std::uint32_t name, int begin_us, int end_us) {
  return {.name = name,
          .stage = Stage::kNetwork,
          .position = 4,
          .bytes = 100,
          .begin = TimePoint(std::chrono::microseconds(begin_us)),
          .end = TimePoint(std::chrono::microseconds(end_us))};
}

TimelineChunk drained(Timeline& timeline) {
  const auto bytes = timeline.drain();
  auto chunk = decode_timeline_chunk(bytes);
  EXPECT_TRUE(chunk) << chunk.status().to_string();
  return chunk ? *chunk : TimelineChunk();
}

TEST(Timeline, SpansTravelWithTheirNames) {
  Timeline timeline(3, "host (pid 7)");
  Track& track = timeline.track("loop");
  const std::uint32_t weight = timeline.name_id("weight");
  EXPECT_EQ(timeline.name_id("weight"), weight);
  EXPECT_NE(timeline.name_id("bias"), weight);
  EXPECT_TRUE(track.record(span(weight, 1, 5)));

  const TimelineChunk chunk = drained(timeline);
  EXPECT_EQ(chunk.rank, 3);
  EXPECT_EQ(chunk.process, "host (pid 7)");
  ASSERT_EQ(chunk.names.size(), 3U);  // "(other)" is the first
  EXPECT_EQ(chunk.names.at(weight).text, "weight");
  ASSERT_EQ(chunk.tracks.size(), 1U);
  EXPECT_EQ(chunk.tracks[0].name, "loop");
  ASSERT_EQ(chunk.tracks[0].spans.size(), 1U);
  const Span& seen = chunk.tracks[0].spans[0];
  EXPECT_EQ(seen.name, weight);
  EXPECT_EQ(seen.stage, Stage::kNetwork);
  EXPECT_EQ(seen.position, 4);
  EXPECT_EQ(seen.bytes, 100);
  EXPECT_EQ(seen.begin, TimePoint(1us));
  EXPECT_EQ(seen.end, TimePoint(5us));
}

TEST(Timeline, NothingNewIsNoChunk) {
  Timeline timeline(0, "");
  Track& track = timeline.track("loop");
  track.record(span(0, 1, 2));
  EXPECT_FALSE(timeline.drain().empty());
  EXPECT_TRUE(timeline.drain().empty());
  track.record(span(0, 2, 3));
  EXPECT_TRUE(drained(timeline).names.empty());  // sent before
}

TEST(Timeline, FullTrackDropsTheNewestAndCounts) {
  Timeline timeline(0, "");
  Track& track = timeline.track("loop", 4);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(track.record(span(0, i, i + 1)), i < 4);
  }
  EXPECT_EQ(track.dropped(), 6U);
  const TimelineChunk chunk = drained(timeline);
  EXPECT_EQ(chunk.tracks.at(0).dropped, 6U);
  EXPECT_EQ(chunk.tracks.at(0).spans.size(), 4U);
  EXPECT_EQ(chunk.tracks.at(0).spans.back().begin, TimePoint(3us));
  EXPECT_TRUE(track.record(span(0, 20, 21)));
  EXPECT_EQ(drained(timeline).tracks.at(0).dropped, 0U);
}

TEST(Timeline, ChunksAreBoundedAndLoseNothing) {
  Timeline timeline(0, "");
  Track& track = timeline.track("loop", 8192);
  for (int i = 0; i < 8192; ++i) {
    ASSERT_TRUE(track.record(span(0, i, i + 1)));
  }
  int next = 0;
  for (auto bytes = timeline.drain(); !bytes.empty(); bytes = timeline.drain()) {
    EXPECT_LE(bytes.size(), 2 * Timeline::kChunkBytes);
    const auto chunk = decode_timeline_chunk(bytes);
    ASSERT_TRUE(chunk);
    for (const auto& part : chunk->tracks) {
      for (const Span& seen : part.spans) {
        ASSERT_EQ(seen.begin, TimePoint(std::chrono::microseconds(next++)));
      }
    }
  }
  EXPECT_EQ(next, 8192);
}

TEST(Timeline, ManyNamesComeInBoundedChunksBeforeTheirSpans) {
  Timeline timeline(0, "");
  Track& track = timeline.track("loop");
  for (int i = 0; i < 2000; ++i) {
    track.record(span(timeline.name_id(std::string(200, 'x') + std::to_string(i)), i, i + 1));
  }
  std::set<std::uint32_t> known;
  std::size_t spans = 0;
  for (auto bytes = timeline.drain(); !bytes.empty(); bytes = timeline.drain()) {
    EXPECT_LE(bytes.size(), 3 * Timeline::kChunkBytes);
    const auto chunk = decode_timeline_chunk(bytes);
    ASSERT_TRUE(chunk);
    for (const auto& name : chunk->names) {
      known.insert(name.id);
    }
    for (const auto& part : chunk->tracks) {
      for (const Span& seen : part.spans) {
        ASSERT_TRUE(known.contains(seen.name));
        ++spans;
      }
    }
  }
  EXPECT_EQ(spans, 2000U);
}

TEST(Timeline, NamesAreBoundedInLengthAndNumber) {
  Timeline timeline(0, "");
  EXPECT_EQ(timeline.name_id(std::string(1000, 'a')), timeline.name_id(std::string(2000, 'a')));
  std::uint32_t last = 0;
  for (std::size_t i = 0; i <= Timeline::kMaxNames; ++i) {
    last = timeline.name_id(std::to_string(i));
  }
  EXPECT_EQ(last, 0U);
}

TEST(Timeline, TurnedOnAgainTellsAllNamesAnew) {
  Timeline timeline(0, "");
  EXPECT_FALSE(timeline.enabled());
  timeline.set_enabled(true);
  EXPECT_TRUE(timeline.enabled());
  timeline.name_id("weight");
  EXPECT_EQ(drained(timeline).names.size(), 2U);
  timeline.set_enabled(true);
  EXPECT_TRUE(timeline.drain().empty());
  timeline.set_enabled(false);
  timeline.set_enabled(true);
  EXPECT_EQ(drained(timeline).names.size(), 2U);
}

TEST(Timeline, RecordingAndDrainingMayRunAtTheSameTime) {
  constexpr int kSpans = 20'000;
  Timeline timeline(0, "");
  Track& one = timeline.track("one", 64);
  Track& two = timeline.track("two", 64);
  std::atomic<int> running{2};
  const auto recorder = [&](Track& track) {
    for (int i = 0; i < kSpans; ++i) {
      track.record(span(timeline.name_id("n" + std::to_string(i % 50)), i, i + 1));
    }
    running.fetch_sub(1);
  };
  std::thread first(recorder, std::ref(one));
  std::thread second(recorder, std::ref(two));
  std::uint64_t seen = 0;
  TimePoint last[2];
  bool last_round = false;
  while (!last_round) {
    last_round = running.load() == 0;
    for (auto bytes = timeline.drain(); !bytes.empty(); bytes = timeline.drain()) {
      const auto chunk = decode_timeline_chunk(bytes);
      EXPECT_TRUE(chunk);
      for (const auto& part : chunk->tracks) {
        seen += part.dropped + part.spans.size();
        for (const Span& s : part.spans) {
          EXPECT_GE(s.begin, last[part.id]);  // order is kept
          last[part.id] = s.begin;
        }
      }
    }
  }
  first.join();
  second.join();
  EXPECT_EQ(seen, 2U * kSpans);
}

TEST(TimelineChunk, TruncationAtEveryByteIsAnError) {
  Timeline timeline(1, "p");
  timeline.track("loop").record(span(timeline.name_id("weight"), 1, 2));
  const auto bytes = timeline.drain();
  ASSERT_TRUE(decode_timeline_chunk(bytes));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(decode_timeline_chunk(cut).status().code(), Code::kCorrupt) << size;
  }
}

TEST(TimelineChunk, ImpossibleContentsAreErrors) {
  TimelineChunk chunk;
  chunk.tracks.push_back({.id = 0, .name = "t", .dropped = 0, .spans = {span(0, 5, 4)}});
  EXPECT_FALSE(decode_timeline_chunk(encode(chunk)));  // ends before it begins
  chunk.tracks[0].spans = {span(0, 1, 2)};
  EXPECT_TRUE(decode_timeline_chunk(encode(chunk)));
  chunk.tracks[0].spans[0].end = TimePoint::max();
  EXPECT_FALSE(decode_timeline_chunk(encode(chunk)));
  chunk.tracks[0].spans = {span(0, 1, 2)};
  chunk.tracks[0].spans[0].stage = static_cast<Stage>(kStageCount);
  EXPECT_FALSE(decode_timeline_chunk(encode(chunk)));
  chunk.tracks[0].spans.clear();
  chunk.tracks[0].id = 1U << 31U;
  EXPECT_FALSE(decode_timeline_chunk(encode(chunk)));
  chunk.tracks.clear();
  chunk.names.push_back({1U << 30U, "n"});
  EXPECT_FALSE(decode_timeline_chunk(encode(chunk)));
}

TEST(Timeline, EveryStageHasAName) {
  std::set<std::string_view> names;
  for (int stage = 0; stage < kStageCount; ++stage) {
    EXPECT_TRUE(names.insert(stage_name(static_cast<Stage>(stage))).second);
  }
}

}  // namespace
}  // namespace sirtaki
