// Loopback: collectives between ranks that are threads of one process and share one device, a stream for each.
//
// For tests of the layers above collectives with several ranks on a fake device: no library, no processes, sums in rank
// order. The rank that starts an operation last puts it on all streams at once, under the lock that guards the shared
// state of the members; no thread waits for the device there.
// One promise of device_collectives.h is not kept: if the device refuses a part of an operation, the operation ends at
// once, though the device may still work on the rest.
// The members share the group; a member lives on its loop, whose thread has entered the device.
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
  std::size_t most_in_flight = 64;  // limit of operations on the device
  Duration poll = std::chrono::microseconds(50);
};

class LoopbackCollectives;

class LoopbackGroup : public std::enable_shared_from_this<LoopbackGroup> {
 public:
  // Creates streams and events. The device must outlive the group.
  static Result<std::shared_ptr<LoopbackGroup>> create(device::DeviceApi& device, int size,
                                                       const LoopbackOptions& options = {});
  ~LoopbackGroup();

  int size() const { return static_cast<int>(streams_.size()); }
  // Creates the member of `rank`; call it once for each rank. `loop` must outlive the member.
  std::unique_ptr<LoopbackCollectives> member(Rank rank, Loop& loop);

 private:
  friend class LoopbackCollectives;

  struct Entry {
    CollectiveArgs args;
    DeviceWork work;
  };
  // One operation: the ranks that have started it, then the events of its end.
  struct Meeting {
    std::vector<std::optional<Entry>> entries;
    int there = 0;  // ranks that have started it, then those that have yet to learn of its end
    std::vector<device::PooledEvent> events;
  };
  // Notification of one rank about the start of an operation.
  struct Launched {
    Status status;
    device::Event over;
    std::shared_ptr<Meeting> meeting;
  };

  LoopbackGroup(device::DeviceApi& device, const LoopbackOptions& options) : device_(device), options_(options) {}
  void enter(Rank rank, Entry entry);
  // Takes `rank` out of the operations of these tags that not all ranks have started; returns their tags.
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
  std::unique_ptr<device::EventPool> events_;                 // guarded by mutex_, like the members below
  std::map<OpTag, std::shared_ptr<Meeting>> meetings_;        // meetings that are not complete
  std::vector<std::weak_ptr<LoopbackCollectives*>> members_;  // members; tasks are posted to their loops
  std::vector<Loop*> loops_;
};

class LoopbackCollectives final : public DeviceCollectives {
 public:
  ~LoopbackCollectives() override;

  Caps caps() const override { return {}; }
  Rank rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override;
  // Operations on the device end with the cause as well, but only when the device is done with them.
  void cancel(TagGroup tags, Status cause) override;
  void abort(Status cause) override;

 private:
  friend class LoopbackGroup;
  struct Flight {
    Done done;
    Status status;  // status of its end: the first error
    device::Event over;
    std::shared_ptr<LoopbackGroup::Meeting> meeting;  // set once all ranks have started the operation
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
