// HierarchicalCollectives: the direct backend where several hosts have several ranks.
//
// An allreduce of more than a little data goes in three phases: a reduce-scatter among the ranks of each host, through
// shared memory where there is some; an allreduce of every share between its owners, one a host, so that each byte
// crosses a network card once and all ranks of a host send at the same time; an allgather on each host. It adds in rank
// order on each host, and then the hosts in order, whatever its size: results depend on the placement of ranks, not on
// how data is cut into operations. Everything else is direct among all ranks.
// Owned by: the engine's session (one an epoch), tests. Thread: the link's loop, destructor included. The link outlives
// it. Destroying it with operations in flight drops their callbacks: abort() first and let the loop run.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "runtime/net/collectives/direct.h"
#include "runtime/net/link/hosts.h"
#include "runtime/net/link/subgroup_link.h"

namespace sirtaki::net {

// The ranks of this rank's host, for the local phases and for connecting their memory.
std::unique_ptr<SubgroupLink> local_part(PointToPoint& link, const Hosts& hosts);

class HierarchicalCollectives final : public Collectives {
 public:
  // Several hosts with several ranks on some of them, and on none more than groups can be told apart.
  static bool fits(const Hosts& hosts);

  // `options.hosts` fits. `local`: memory of this host's ranks, which all of them then have, or null.
  HierarchicalCollectives(PointToPoint& link, const DirectOptions& options, std::shared_ptr<SharedMemory> local);

  Caps caps() const override;
  Rank rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  const HostGroups* host_groups() const override { return &groups_; }
  std::unique_ptr<Collectives> part(const std::vector<Rank>& ranks) override { return flat_.part(ranks); }
  void start(CollectiveArgs args, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void forget(const TagGroup& tags) override;
  void abort(Status cause) override;

 private:
  struct Run;

  // Some of the ranks as collectives of their own.
  struct Group {
    std::unique_ptr<SubgroupLink> link;
    std::unique_ptr<DirectCollectives> collectives;
  };

  Group group_of(std::unique_ptr<SubgroupLink> link, std::shared_ptr<SharedMemory> shared) const;
  bool goes_by_host(const CollectiveArgs& args) const;
  // The phases: each gets the outcome of what came before.
  using Step = void (HierarchicalCollectives::*)(const std::shared_ptr<Run>& run, const Status& before);
  Done then(Step step, const std::shared_ptr<Run>& run);
  void reduce_here(const std::shared_ptr<Run>& run);
  void exchange(const std::shared_ptr<Run>& run, const Status& reduced);
  void spread_here(const std::shared_ptr<Run>& run, const Status& exchanged);
  void finish(const std::shared_ptr<Run>& run, const Status& status);

  PointToPoint& link_;
  const DirectOptions options_;
  const std::shared_ptr<Workshop> workshop_;  // of all groups: memory, and turns by urgency, are the rank's
  DirectCollectives flat_;
  Group local_;
  std::vector<Group> owners_;  // of each own share
  HostGroups groups_;
  std::vector<int> places_;            // of the owners of all shares on this host
  std::unordered_set<OpTag> by_host_;  // in flight
  const std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sirtaki::net
