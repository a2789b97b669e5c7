// CallerRegistry: which threads of the program wait for results, and for how long. Feeds the search for stuck jobs.
//
// A thread counts as a caller from its first wait until it ends; while it lives and does not wait it may still submit
// what the others wait for, so a job with such a thread is never called stuck, only late. A wait may be cut into slices
// by an adapter that looks for Ctrl-C between them: a thread that comes back within kSliceGap never stopped waiting.
// Threads: any; a few atomics per wait.
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

  // Around one blocking call.
  class Scope {
   public:
    Scope(CallerRegistry& registry, TimePoint now);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // True once for every wait that has lasted kLongWait: the engine should be told.
    bool became_long(TimePoint now);
    bool gives_way() const;

   private:
    struct Caller& caller_;
  };

  Callers look(TimePoint now);
  // Says whether waits of the calling thread give way: they end without a result when the job is stuck otherwise.
  void set_gives_way(bool on);

 private:
  friend class Scope;
  struct Caller& mine();

  const std::uint64_t serial_;  // of this registry: a thread may outlive many sessions
  std::mutex mutex_;            // threads come and go rarely
  std::vector<std::weak_ptr<struct Caller>> callers_;
};

// Rest: whether this process has computed lately. A function that waits to be called (a kernel of TensorFlow's) has no
// thread whose waiting could be seen, and its graph may still compute what the others wait for; once the whole process
// uses next to no processor, nothing does.
// Pure; one thread.
class Rest {
 public:
  static constexpr Duration kLong = std::chrono::seconds(5);
  static constexpr Duration kGap = std::chrono::seconds(2);  // nobody has looked for so long: begins anew

  // True when all looks of the last kLong saw less than a tenth of a processor in use. `used`: by all threads of the
  // process since it began.
  bool lasts(TimePoint now, Duration used);

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(100);  // shorter looks are not precise

  std::optional<TimePoint> since_;
  TimePoint looked_at_;
  Duration used_{0};
};

}  // namespace sirtaki::engine
