// RequestTable: operations by name as the program's threads see them: ids to poll, wait for and release.
//
// Threads: any; the loop completes requests. Owned by Session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/session/callers.h"

namespace sirtaki::engine {

// One result that threads wait for. Shared by the table and the callback that fills it.
class Slot {
 public:
  void complete(Status status, OpResult result = {});
  bool done() const;
  // nullopt at the deadline; slices of at most `slice`, so that the caller can look around in between.
  std::optional<Status> wait_for(Duration slice) const;
  const OpResult& result() const { return result_; }  // after done()

 private:
  mutable std::mutex mutex_;  // results cross threads here and nowhere else
  mutable std::condition_variable changed_;
  bool done_ = false;
  Status status_;
  OpResult result_;
};

// How a thread blocks: in slices, watching for Ctrl-C and telling the engine of long waits.
class Waiter {
 public:
  // `interrupted` may be empty; `on_long_wait` posts to the engine. Both outlive the waiter.
  Waiter(std::function<bool()> interrupted, std::function<void()> on_long_wait);
  // nullopt: the timeout (negative: none) is over, or the wait gives way. kAborted when interrupted, kShutdown when the
  // session has ended.
  std::optional<Status> wait(const Slot& slot, Duration timeout);
  // To the end of the operation or of the session, whichever comes first: memory must not be given back before.
  Status wait_out(const Slot& slot) const;
  // The loop has stopped: nothing completes any more.
  void end() { ended_ = true; }
  // Waits of the calling thread, from now on, end when the job is stuck otherwise (give_way()).
  void set_gives_way(bool on) { registry_.set_gives_way(on); }
  // Ends the waits that give way.
  void give_way() { ++given_way_; }
  Callers callers() { return registry_.look(std::chrono::steady_clock::now()); }

 private:
  std::function<bool()> interrupted_;
  std::function<void()> on_long_wait_;
  CallerRegistry registry_;
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> given_way_{0};  // how often
};

class RequestTable {
 public:
  struct Ticket {
    RequestId id;
    std::shared_ptr<Slot> slot;
  };

  explicit RequestTable(Rank rank) : rank_(rank) {}

  // All or none. kInvalidArgument when a name is in flight already, or twice in the list; empty names are always free.
  Result<std::vector<Ticket>> add(const std::vector<std::string>& names);
  // From the loop. The name is free again before the program can see the result.
  void complete(RequestId id, Status status, OpResult result);

  std::shared_ptr<Slot> find(RequestId id) const;  // nullptr when unknown
  void erase(RequestId id);
  // Erases it when it is over, and lets go of `memory` then.
  void forget(RequestId id, std::shared_ptr<const void> memory);

  void watch(RequestId id);
  // As Session's. `done` may not call the table.
  Status on_done(RequestId id, Task done);
  // nullopt once closed.
  std::optional<std::vector<RequestId>> wait_watched(std::size_t max, Duration timeout);
  void close();

 private:
  static constexpr std::size_t kMaxInFlight = 1U << 20;
  struct Entry {
    std::shared_ptr<Slot> slot;
    std::string name;
    bool watched = false;
    Task on_done = {};
    bool forgotten = false;
    std::shared_ptr<const void> memory = {};  // of one that is forgotten
  };

  const Rank rank_;
  mutable std::mutex mutex_;  // submitting and completing threads meet here, for the length of a map operation
  std::condition_variable watched_changed_;
  std::unordered_map<RequestId, Entry> entries_;
  std::unordered_set<std::string> names_;
  std::deque<RequestId> watched_done_;
  std::uint64_t next_ = 1;
  std::size_t in_flight_ = 0;
  bool closed_ = false;
};

}  // namespace sirtaki::engine
