// CallerRegistry: the threads of the program that wait for results, and how long they have waited. The search for stuck
// jobs reads the registry.
//
// A thread counts as a caller from its first wait until it ends. A caller that is not waiting may still submit an
// operation that the other ranks need, so a job with such a thread is late, but never stuck. An adapter may cut a wait
// into slices to look for Ctrl-C between them: a thread that waits again within kSliceGap counts as waiting throughout.
// Threads: any; a wait costs a few atomic operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/engine/engine.h"

namespace sirtaki::engine {

class CallerRegistry {
 public:
  static constexpr Duration kSliceGap = std::chrono::milliseconds(60);
  static constexpr Duration kLongWait = std::chrono::milliseconds(250);

  CallerRegistry();

  // Marks the calling thread as waiting for the lifetime of the scope, which encloses one blocking call.
  class Scope {
   public:
    Scope(CallerRegistry& registry, TimePoint now);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // Returns true once for every wait that has lasted kLongWait, so that the caller notifies the engine.
    bool became_long(TimePoint now);
    // Returns the last value that the thread passed to set_gives_way().
    bool gives_way() const;

   private:
    struct Caller& caller_;
  };

  // Returns whether the callers of this rank wait at `now`, and forgets threads that have ended.
  Callers look(TimePoint now);
  // Sets whether waits of the calling thread give way: such a wait ends without a result if the job is stuck otherwise.
  void set_gives_way(bool on);

 private:
  friend class Scope;
  struct Caller& mine();

  const std::uint64_t serial_;  // number of this registry: a thread may outlive many sessions
  std::mutex mutex_;            // seldom contended: threads come and go rarely
  std::vector<std::weak_ptr<struct Caller>> callers_;
};

// Rest: detects that this process has stopped computing. A completion function (a kernel of TensorFlow, for example)
// has no waiting thread that the registry could see, and its graph may still compute the input of an operation that
// other ranks wait for. Once the whole process uses next to no processor time, no such computation is left.
// Pure; one thread.
class Rest {
 public:
  static constexpr Duration kLong = std::chrono::seconds(5);
  static constexpr Duration kGap = std::chrono::seconds(2);  // a longer gap between two looks restarts the detection

  // Returns true if every look of the last kLong found less than a tenth of one processor in use. `used` is the
  // processor time of all threads since the process began.
  bool lasts(TimePoint now, Duration used);

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(100);  // shorter intervals are too imprecise

  std::optional<TimePoint> since_;
  TimePoint looked_at_;
  Duration used_{0};
};

}  // namespace sirtaki::engine
