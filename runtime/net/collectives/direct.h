// DirectCollectives: the default backend, asynchronous state machines over a PointToPoint link.
//
// Owned by: the engine's session (one an epoch), tests. Thread: the link's loop, destructor included. The link outlives
// it. Destroying it with operations in flight drops their callbacks: abort() first and let the loop run.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/net/collectives/operation.h"

namespace sirtaki::net {

// What operations use up and take turns on; of one loop.
struct Workshop {
  StagingPool pool;
  TurnQueue turns;
};

class DirectCollectives final : public Collectives {
 public:
  // With `shared`, which all ranks then have, large data goes through it. Same bits. `workshop`: one of its own unless
  // several share one.
  explicit DirectCollectives(PointToPoint& link, const DirectOptions& options = {},
                             std::shared_ptr<SharedMemory> shared = nullptr,
                             std::shared_ptr<Workshop> workshop = nullptr);
  static std::shared_ptr<Workshop> make_workshop(Loop& loop, const DirectOptions& options);
  ~DirectCollectives() override;

  Caps caps() const override { return {}; }
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Rank job_rank(Rank rank) const override { return link_.job_rank(rank); }
  std::unique_ptr<Collectives> part(const std::vector<Rank>& ranks) override;
  SharedBuffer allocate_shared(std::size_t bytes) override;
  void start(CollectiveArgs args, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void forget(const TagGroup& tags) override;
  void abort(Status cause) override;

  std::size_t in_flight() const { return operations_.size(); }
  bool in_flight(OpTag tag) const { return operations_.contains(tag); }

 private:
  void reply(Done done, Status status);
  std::vector<std::shared_ptr<Operation>> in_flight_of(const TagGroup& tags) const;

  PointToPoint& link_;
  const DirectOptions options_;
  const std::shared_ptr<SharedMemory> shared_;
  const std::shared_ptr<Workshop> workshop_;
  Status aborted_;
  std::unordered_map<OpTag, std::shared_ptr<Operation>> operations_;
};

}  // namespace sirtaki::net
