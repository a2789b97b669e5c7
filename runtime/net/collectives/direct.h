// DirectCollectives: the default backend, asynchronous state machines over a PointToPoint link.
//
// Owned by: the engine's session (one per epoch), tests. Thread: the loop of the link, destructor included. The link
// must outlive it. Destroying it with operations in flight drops their callbacks: call abort() first and let the loop
// run.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/net/batch/batch_exchange.h"
#include "runtime/net/collectives/operation.h"

namespace sirtaki::net {

// Resources that the operations of one loop share: scratch memory and turns.
struct Workshop {
  StagingPool pool;
  TurnQueue turns;
};

class DirectCollectives final : public Collectives {
 public:
  // Sends large data through `shared`, which all ranks have or none; results have the same bits. Makes a `workshop`
  // unless one is given to be shared.
  explicit DirectCollectives(PointToPoint& link, const DirectOptions& options = {},
                             std::shared_ptr<SharedMemory> shared = nullptr,
                             std::shared_ptr<Workshop> workshop = nullptr);
  static std::shared_ptr<Workshop> make_workshop(Loop& loop, const DirectOptions& options);
  ~DirectCollectives() override;

  Caps caps() const override { return {}; }
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Rank job_rank(Rank rank) const override { return link_.job_rank(rank); }
  Duration round_trip() const override { return link_.round_trip(); }
  std::unique_ptr<Collectives> part(const std::vector<Rank>& ranks) override;
  Traffic traffic(const CollectiveArgs& allreduce) const override;
  SharedBuffer allocate_shared(std::size_t bytes) override;
  void start(CollectiveArgs args, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void forget(const TagGroup& tags) override;
  void abort(Status cause) override;

  std::size_t in_flight() const { return operations_.size(); }
  bool in_flight(OpTag tag) const { return operations_.contains(tag); }

 private:
  void reply(Done done, Status status);
  void compare(OpTag tag, const BatchExchange::Announced& announced);
  std::vector<std::shared_ptr<Operation>> in_flight_of(const TagGroup& tags) const;

  PointToPoint& link_;
  const DirectOptions options_;
  const std::shared_ptr<SharedMemory> shared_;
  const std::shared_ptr<Workshop> workshop_;
  std::shared_ptr<BatchExchange> batches_;  // null without shared memory
  Status aborted_;
  std::unordered_map<OpTag, std::shared_ptr<Operation>> operations_;
};

}  // namespace sirtaki::net
