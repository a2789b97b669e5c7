// SubgroupLink: a subset of the ranks of a link as a group, numbered from 0 in the given order.
//
// Serves algorithms among the ranks of a host, or among one rank per host, which are written as if no other ranks
// existed. Messages of two groups of one link, and of the link itself, never mix, because each has slots of its own.
// Owned by: HierarchicalCollectives, the set-up of shared memory, parts of collectives. Thread: the loop of the link,
// which must outlive the group. Cancelling a tag, or the link, cancels it for all groups, because they are parts of one
// operation.
#pragma once

#include <vector>

#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

class SubgroupLink final : public PointToPoint {
 public:
  // The largest number of groups of one link, the link itself not counted.
  static constexpr std::uint32_t kMaxGroups = 63;

  // Requires that `ranks` of `whole` contain this rank, and that `group` is below kMaxGroups, equal on all of `ranks`,
  // and different for each group with a common rank whose operations use the same tags.
  SubgroupLink(PointToPoint& whole, std::vector<Rank> ranks, std::uint32_t group, bool one_host);

  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  Loop& loop() override { return whole_.loop(); }
  void send(const Envelope& envelope, ConstBytes data, Done done) override;
  void recv(const Envelope& envelope, Bytes out, Done done) override;
  Rank job_rank(Rank peer) const override { return whole_.job_rank(ranks_[static_cast<std::size_t>(peer)]); }
  bool one_host() const override { return one_host_; }
  Duration round_trip() const override { return whole_.round_trip(); }
  void cancel(TagGroup tags, Status cause) override { whole_.cancel(tags, std::move(cause)); }
  void forget(const TagGroup& tags) override { whole_.forget(tags); }
  void fail(Status cause) override { whole_.fail(std::move(cause)); }

 private:
  Envelope outside(const Envelope& envelope) const;

  PointToPoint& whole_;
  const std::vector<Rank> ranks_;
  const std::uint32_t first_slot_;
  const bool one_host_;
  Rank rank_ = -1;
};

}  // namespace sirtaki::net
