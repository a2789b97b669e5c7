// Trace: the engine's handle on the timeline; a call costs one branch while tracing is off.
//
// Owner: Engine. Thread: loop. Borrows the Timeline, which lives as long as the session.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/loop.h"
#include "runtime/base/telemetry/timeline.h"

namespace sirtaki::engine {

class Trace {
 public:
  // Creates one track for each subject, not thread, so that operations and partitions appear as lanes.
  Trace(Loop& loop, Timeline& timeline)
      : loop_(loop),
        timeline_(timeline),
        ops_(timeline.track("operations")),
        streams_(timeline.track("streams")),
        needs_(timeline.track("needed by the program")) {}

  bool on() const { return timeline_.enabled(); }
  TimePoint now() const { return on() ? loop_.now() : TimePoint(); }

  // Records [begin, now] unless tracing was off at either end.
  void op(std::string_view name, Stage stage, TimePoint begin, std::int64_t bytes) {
    record(ops_, name, stage, {begin, now()}, {-1, bytes});
  }
  void partition(std::string_view name, Stage stage, TimePoint begin, std::int32_t position, std::int64_t bytes) {
    record(streams_, name, stage, {begin, now()}, {position, bytes});
  }
  // Records a span with a known end.
  void queued(std::string_view name, TimePoint begin, TimePoint end, std::int32_t position) {
    record(streams_, name, Stage::kQueue, {begin, end}, {position, -1});
  }
  void waited(std::string_view name, TimePoint begin) { record(needs_, name, Stage::kWait, {begin, now()}, {}); }
  void needed(std::string_view name, TimePoint begin, TimePoint end, std::int32_t position) {
    record(needs_, name, Stage::kNeed, {begin, end}, {position, -1});
  }

  // Records an instant on the track of streams.
  void event(std::string_view text) {
    const TimePoint at = now();
    record(streams_, text, Stage::kControl, {at, at}, {});
  }

 private:
  struct When {
    TimePoint begin;
    TimePoint end;
  };
  struct Which {
    std::int32_t position = -1;
    std::int64_t bytes = -1;
  };

  void record(Track& track, std::string_view name, Stage stage, When when, Which which) {
    if (!on() || when.begin == TimePoint()) {
      return;
    }
    Span span;
    span.name = timeline_.name_id(name);
    span.stage = stage;
    span.position = which.position;
    span.bytes = which.bytes;
    span.begin = when.begin;
    span.end = when.end;
    track.record(span);
  }

  Loop& loop_;
  Timeline& timeline_;
  Track& ops_;
  Track& streams_;
  Track& needs_;
};

}  // namespace sirtaki::engine
