// HierarchicalCollectives: the direct backend for several hosts with several ranks.
//
// A large allreduce has three phases:
//   1. a reduce-scatter among the ranks of each host, through shared memory if available;
//   2. an allreduce of every share among its owners, one per host, so that each byte crosses a network card once and
//      all ranks of a host send at the same time;
//   3. an allgather on each host.
// Sums are made in rank order on each host, then in the order of hosts, for any size: results depend on the placement
// of ranks, not on the cutting of data into operations. All other operations are direct among all ranks.
// Owned by: the engine's session (one per epoch), tests. Thread: the loop of the link, destructor included. The link
// must outlive it. Destroying it with operations in flight drops their callbacks: call abort() first and let the loop
// run.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "runtime/net/collectives/direct.h"
#include "runtime/net/link/hosts.h"
#include "runtime/net/link/subgroup_link.h"

namespace sirtaki::net {

// Returns the link among the ranks of this host, for the phases on one host and for the set-up of shared memory.
std::unique_ptr<SubgroupLink> local_part(PointToPoint& link, const Hosts& hosts);

class HierarchicalCollectives final : public Collectives {
 public:
  // Returns whether several hosts exist, at least one with several ranks, and none with more than SubgroupLink
  // supports.
  static bool fits(const Hosts& hosts);

  // Requires fits(options.hosts). `local` is the memory of the ranks of this host: all of them have it, or it is null.
  HierarchicalCollectives(PointToPoint& link, const DirectOptions& options, std::shared_ptr<SharedMemory> local);

  Caps caps() const override;
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  Duration round_trip() const override { return link_.round_trip(); }
  const HostGroups* host_groups() const override { return &groups_; }
  std::unique_ptr<Collectives> part(const std::vector<Rank>& ranks) override { return flat_.part(ranks); }
  Traffic traffic(const CollectiveArgs& allreduce) const override;
  void start(CollectiveArgs args, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void forget(const TagGroup& tags) override;
  void abort(Status cause) override;

 private:
  struct Run;

  // A subset of the ranks with collectives of its own.
  struct Group {
    std::unique_ptr<SubgroupLink> link;
    std::unique_ptr<DirectCollectives> collectives;
  };

  Group group_of(std::unique_ptr<SubgroupLink> link, std::shared_ptr<SharedMemory> shared) const;
  bool goes_by_host(const CollectiveArgs& args) const;
  // The phases. Each receives the outcome of the one before.
  using Step = void (HierarchicalCollectives::*)(const std::shared_ptr<Run>& run, const Status& before);
  Done then(Step step, const std::shared_ptr<Run>& run);
  void reduce_here(const std::shared_ptr<Run>& run);
  void exchange(const std::shared_ptr<Run>& run, const Status& reduced);
  void spread_here(const std::shared_ptr<Run>& run, const Status& exchanged);
  void finish(const std::shared_ptr<Run>& run, const Status& status);

  PointToPoint& link_;
  const DirectOptions options_;
  const std::shared_ptr<Workshop> workshop_;  // shared by all groups
  DirectCollectives flat_;
  Group local_;
  std::vector<Group> owners_;  // index: share of this rank
  HostGroups groups_;
  std::vector<int> places_;            // places of the owners of all shares on this host
  std::unordered_set<OpTag> by_host_;  // in flight
  const std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sirtaki::net
