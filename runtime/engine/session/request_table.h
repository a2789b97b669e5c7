// RequestTable: the operations by name that the program has submitted, with ids to poll, to wait for and to release.
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

// A result that threads wait for. Shared by the table and the callback that sets the result.
class Slot {
 public:
  void complete(Status status, OpResult result = {});
  bool done() const;
  // Waits for at most `slice`, after which the caller can look for an interruption. Returns nullopt if the result is
  // still missing.
  std::optional<Status> wait_for(Duration slice) const;
  const OpResult& result() const { return result_; }  // requires done()

 private:
  mutable std::mutex mutex_;  // results cross threads only here
  mutable std::condition_variable changed_;
  bool done_ = false;
  Status status_;
  OpResult result_;
};

// Blocks threads until a result is there: in slices, between which it looks for Ctrl-C and reports long waits.
class Waiter {
 public:
  // `interrupted` may be empty and returns true to end the waits. `on_long_wait` runs on the waiting thread and posts
  // to the engine. Both must stay callable for the lifetime of the waiter.
  Waiter(std::function<bool()> interrupted, std::function<void()> on_long_wait);
  // Waits for the result. Returns nullopt if `timeout` has passed (negative: no limit) or the wait gives way, kAborted
  // if it was interrupted, and kShutdown if the session has ended.
  std::optional<Status> wait(const Slot& slot, Duration timeout);
  // Waits until the operation or the session has ended; memory of the operation must not be freed before.
  Status wait_out(const Slot& slot) const;
  // Ends all waits. Requires a stopped loop, on which no operation completes any more.
  void end() { ended_ = true; }
  // Sets whether later waits of the calling thread end at give_way().
  void set_gives_way(bool on) { registry_.set_gives_way(on); }
  // Ends the waits of threads that give way, without a result.
  void give_way() { ++given_way_; }
  Callers callers() { return registry_.look(std::chrono::steady_clock::now()); }

 private:
  std::function<bool()> interrupted_;
  std::function<void()> on_long_wait_;
  CallerRegistry registry_;
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> given_way_{0};  // number of give_way() calls
};

class RequestTable {
 public:
  struct Ticket {
    RequestId id;
    std::shared_ptr<Slot> slot;
  };

  explicit RequestTable(Rank rank) : rank_(rank) {}
  void set_rank(Rank rank) { rank_ = rank; }  // before the first request

  // Adds all names or none. Returns kInvalidArgument if a name is in flight already or is listed twice; empty names may
  // repeat.
  Result<std::vector<Ticket>> add(const std::vector<std::string>& names);
  // Sets the result of a request, on the loop. The name is free again before the program can see the result.
  void complete(RequestId id, Status status, OpResult result);

  std::shared_ptr<Slot> find(RequestId id) const;  // null if the id is unknown
  void erase(RequestId id);
  // Erases the request and releases `memory` once the operation has completed.
  void forget(RequestId id, std::shared_ptr<const void> memory);

  // Lets wait_watched() return the id once the request has completed.
  void watch(RequestId id);
  // See Session::on_done(). `done` must not call the table.
  Status on_done(RequestId id, Task done);
  // Returns up to `max` completed requests among those watched; empty after `timeout`; nullopt once the table is
  // closed.
  std::optional<std::vector<RequestId>> wait_watched(std::size_t max, Duration timeout);
  // Ends the waits for watched requests and calls the remaining functions of on_done().
  void close();

 private:
  static constexpr std::size_t kMaxInFlight = 1U << 20;
  struct Entry {
    std::shared_ptr<Slot> slot;
    std::string name;
    bool watched = false;
    Task on_done = {};
    bool forgotten = false;
    std::shared_ptr<const void> memory = {};  // set by forget()
  };

  Rank rank_;
  mutable std::mutex mutex_;  // held for a map operation only
  std::condition_variable watched_changed_;
  std::unordered_map<RequestId, Entry> entries_;
  std::unordered_set<std::string> names_;
  std::deque<RequestId> watched_done_;
  std::uint64_t next_ = 1;
  std::size_t in_flight_ = 0;
  bool closed_ = false;
};

}  // namespace sirtaki::engine
