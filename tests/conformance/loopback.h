// Loopback: collectives between ranks that are threads of one process and share one device, a stream for each.
//
// For: tests of what is above collectives, with several ranks on a device that a test plays: no library, no processes,
// sums in rank order. An operation is put on all streams at once by the rank that starts it last, under the lock that
// guards what members have in common; nobody waits for the device there.
// What does not hold of device_collectives.h: where the device refuses a part of an operation, it ends at once, though
// the device may still work on the rest.
// Owned by: the group is shared by its members; a member lives on its loop, whose thread has entered the device.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/device/event_pool.h"
#include "runtime/net/device/device_collectives.h"

namespace sirtaki::net::testing {

struct LoopbackOptions {
  std::size_t most_in_flight = 64;  // operations on the device
  Duration poll = std::chrono::microseconds(50);
};

class LoopbackCollectives;

class LoopbackGroup : public std::enable_shared_from_this<LoopbackGroup> {
 public:
  // Makes streams and events. The device outlives the group.
  static Result<std::shared_ptr<LoopbackGroup>> create(device::DeviceApi& device, int size,
                                                       const LoopbackOptions& options = {});
  ~LoopbackGroup();

  int size() const { return static_cast<int>(streams_.size()); }
  // Of `rank`, once; on `loop`, which outlives it.
  std::unique_ptr<LoopbackCollectives> member(Rank rank, Loop& loop);

 private:
  friend class LoopbackCollectives;

  struct Entry {
    CollectiveArgs args;
    DeviceWork work;
  };
  // One operation: who has started it, then what tells that it is over.
  struct Meeting {
    std::vector<std::optional<Entry>> entries;
    int there = 0;  // ranks that have started it, then those that have not heard of its end
    std::vector<device::PooledEvent> events;
  };
  // What each rank gets to hear of it.
  struct Launched {
    Status status;
    device::Event over;
    std::shared_ptr<Meeting> meeting;
  };

  LoopbackGroup(device::DeviceApi& device, const LoopbackOptions& options) : device_(device), options_(options) {}
  void enter(Rank rank, Entry entry);
  // Operations of these tags that not all ranks have started: this one has not, either. Which they are.
  std::vector<OpTag> leave(Rank rank, const TagGroup& tags);
  void give_back(Meeting& meeting);
  Status launch(Meeting& meeting, device::Event& over);
  Status all_wait(const std::vector<device::Event>& events);
  Result<std::vector<device::Event>> mark_all(Meeting& meeting);
  Status reduce(const Meeting& meeting, Rank rank);
  Status move(const Meeting& meeting, Rank rank);
  Status copy(Rank rank, Bytes to, const std::byte* from);

  device::DeviceApi& device_;
  const LoopbackOptions options_;
  std::vector<device::Stream> streams_;
  std::mutex mutex_;
  std::unique_ptr<device::EventPool> events_;                 // guarded by mutex_, like those below
  std::map<OpTag, std::shared_ptr<Meeting>> meetings_;        // not complete
  std::vector<std::weak_ptr<LoopbackCollectives*>> members_;  // posted to on their loops
  std::vector<Loop*> loops_;
};

class LoopbackCollectives final : public DeviceCollectives {
 public:
  ~LoopbackCollectives() override;

  Caps caps() const override { return {}; }
  Rank rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override;
  // What the device works on by then ends with the cause as well, but when the device is done.
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

 private:
  friend class LoopbackGroup;
  struct Flight {
    Done done;
    Task queued;
    Status status;  // that it ends with: the first error
    device::Event over;
    std::shared_ptr<LoopbackGroup::Meeting> meeting;  // of those that all ranks have started
  };

  LoopbackCollectives(std::shared_ptr<LoopbackGroup> group, Rank rank, Loop& loop);
  void launched(OpTag tag, LoopbackGroup::Launched launched);
  void end(std::unordered_map<OpTag, Flight>::iterator flight);
  void watch();
  void look();

  const std::shared_ptr<LoopbackGroup> group_;
  const Rank rank_;
  Loop& loop_;
  Status aborted_;
  std::unordered_map<OpTag, Flight> flights_;
  TimerId timer_;
  std::shared_ptr<LoopbackCollectives*> self_ = std::make_shared<LoopbackCollectives*>(this);
};

}  // namespace sirtaki::net::testing
