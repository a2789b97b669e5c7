// SubgroupLink: some ranks of a link as a group of their own, numbered from 0 in the order given.
//
// For: algorithms that let the ranks of a host, or one of each host, work together, written as if these were all.
// Messages of two groups of one link, and of the link itself, never meet: each has slots of its own.
// Owned by: HierarchicalCollectives; whoever connects the shared memory of a host; parts of collectives. Thread: the
// link's loop. The link outlives it. What ends a tag or the link ends it for all its groups: they are parts of one
// operation.
#pragma once

#include <vector>

#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

class SubgroupLink final : public PointToPoint {
 public:
  // Groups that a link can tell apart, the whole not counted.
  static constexpr std::uint32_t kMaxGroups = 63;

  // `ranks` of `whole`, this one among them. `group`: below kMaxGroups, the same on all of `ranks`, and another one
  // for every other group that a rank of them is in and that has operations of the same tags.
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
