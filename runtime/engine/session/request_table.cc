#include "runtime/engine/session/request_table.h"

#include <algorithm>

namespace sirtaki::engine {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(100);

Status session_over() {
  return {Code::kShutdown, "the session was shut down"};
}

Status duplicate(const std::string& name, Rank rank) {
  return {Code::kInvalidArgument,
          "tensor '" + name + "' is in flight already on rank " + std::to_string(rank) +
              ": a name may be used again only when its operation has completed. Wait for the "
              "first one, or give the second another name",
          {rank, name}};
}

}  // namespace

// ---- Slot ----

void Slot::complete(Status status, OpResult result) {
  // Notifies under the lock, since a waiter may free the slot as soon as it can see the result.
  const std::lock_guard lock(mutex_);
  done_ = true;
  status_ = std::move(status);
  result_ = std::move(result);
  changed_.notify_all();
}

bool Slot::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::optional<Status> Slot::wait_for(Duration slice) const {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, slice, [&] { return done_; })) {
    return status_;
  }
  return std::nullopt;
}

// ---- Waiter ----

Waiter::Waiter(std::function<bool()> interrupted, std::function<void()> on_long_wait)
    : interrupted_(std::move(interrupted)), on_long_wait_(std::move(on_long_wait)) {}

std::optional<Status> Waiter::wait(const Slot& slot, Duration timeout) {
  if (slot.done()) {
    return slot.wait_for(Duration(0));
  }
  const auto clock_now = [] { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); };
  const TimePoint begin = clock_now();
  CallerRegistry::Scope scope(registry_, begin);
  const std::uint64_t given_way = given_way_;
  while (true) {
    Duration slice = kSlice;
    if (timeout >= Duration(0)) {
      slice = std::min(slice, std::max(Duration(0), timeout - (clock_now() - begin)));
    }
    if (auto status = slot.wait_for(slice)) {
      return status;
    }
    const TimePoint now = clock_now();
    if (scope.became_long(now)) {
      on_long_wait_();
    }
    if (ended_) {
      return slot.wait_for(Duration(0)).value_or(session_over());
    }
    if (interrupted_ && interrupted_()) {
      return Status(Code::kAborted, "the wait was interrupted");
    }
    if ((timeout >= Duration(0) && now - begin >= timeout) || (scope.gives_way() && given_way_ != given_way)) {
      return std::nullopt;
    }
  }
}

Status Waiter::wait_out(const Slot& slot) const {
  while (true) {
    if (auto status = slot.wait_for(kSlice)) {
      return *status;
    }
    if (ended_) {
      return slot.wait_for(Duration(0)).value_or(session_over());
    }
  }
}

// ---- RequestTable ----

Result<std::vector<RequestTable::Ticket>> RequestTable::add(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    return Status(Code::kShutdown, "the session has ended");
  }
  if (in_flight_ + names.size() > kMaxInFlight) {
    return Status(Code::kExhausted, "more than " + std::to_string(kMaxInFlight) +
                                        " operations are in flight; wait for some of them first");
  }
  std::vector<std::string> taken;
  for (const std::string& name : names) {
    if (!name.empty() && !names_.insert(name).second) {
      for (const std::string& undo : taken) {
        names_.erase(undo);
      }
      return duplicate(name, rank_);
    }
    if (!name.empty()) {
      taken.push_back(name);
    }
  }
  std::vector<Ticket> tickets;
  for (const std::string& name : names) {
    Ticket ticket{RequestId(next_++), std::make_shared<Slot>()};
    entries_.emplace(ticket.id, Entry{ticket.slot, name, false});
    tickets.push_back(std::move(ticket));
  }
  in_flight_ += names.size();
  return tickets;
}

void RequestTable::complete(RequestId id, Status status, OpResult result) {
  Task done;
  Entry over;  // destroyed after the lock, since it may own memory of the program
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(id);
    if (it == entries_.end()) {
      return;
    }
    --in_flight_;
    names_.erase(it->second.name);
    it->second.slot->complete(std::move(status), std::move(result));
    done = std::move(it->second.on_done);
    if (it->second.watched) {
      watched_done_.push_back(id);
      watched_changed_.notify_all();
    }
    if (it->second.forgotten) {
      over = std::move(it->second);
      entries_.erase(it);
    }
  }
  if (done) {
    done();
  }
}

void RequestTable::forget(RequestId id, std::shared_ptr<const void> memory) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) {
    return;
  }
  if (it->second.slot->done()) {
    entries_.erase(it);
    return;
  }
  it->second.forgotten = true;
  it->second.memory = std::move(memory);
}

std::shared_ptr<Slot> RequestTable::find(RequestId id) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : it->second.slot;
}

void RequestTable::erase(RequestId id) {
  const std::lock_guard lock(mutex_);
  entries_.erase(id);  // wait_watched() may still return the id, which is never reused
}

void RequestTable::watch(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(id);
  if (it != entries_.end() && std::exchange(it->second.watched, true)) {
    return;
  }
  // A request that was released meanwhile is over, too.
  if (it == entries_.end() || it->second.slot->done()) {
    watched_done_.push_back(id);
    watched_changed_.notify_all();
  }
}

Status RequestTable::on_done(RequestId id, Task done) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(id);
    if (it == entries_.end()) {
      return invalid_argument("no request has the number " + std::to_string(id.value) + "; was it released?");
    }
    if (!closed_ && !it->second.slot->done()) {
      if (it->second.on_done) {
        return invalid_argument("request " + std::to_string(id.value) + " has a function to call already");
      }
      it->second.on_done = std::move(done);
      return {};
    }
  }
  done();
  return {};
}

std::optional<std::vector<RequestId>> RequestTable::wait_watched(std::size_t max, Duration timeout) {
  std::unique_lock lock(mutex_);
  watched_changed_.wait_for(lock, timeout, [&] { return closed_ || !watched_done_.empty(); });
  std::vector<RequestId> ids;
  while (ids.size() < max && !watched_done_.empty()) {
    ids.push_back(watched_done_.front());
    watched_done_.pop_front();
  }
  if (ids.empty() && closed_) {
    return std::nullopt;
  }
  return ids;
}

void RequestTable::close() {
  std::vector<Task> left;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    watched_changed_.notify_all();
    for (auto& [id, entry] : entries_) {
      if (entry.on_done) {
        left.push_back(std::move(entry.on_done));
      }
    }
  }
  for (Task& done : left) {
    done();
  }
}

}  // namespace sirtaki::engine
