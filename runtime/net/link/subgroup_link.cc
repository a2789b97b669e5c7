#include "runtime/net/link/subgroup_link.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

// Number of slots per group, of 32 bits. Slots number the pieces of one operation, which are far fewer.
constexpr std::uint32_t kSlotBits = 26;

}  // namespace

SubgroupLink::SubgroupLink(PointToPoint& whole, std::vector<Rank> ranks, std::uint32_t group, bool one_host)
    : whole_(whole), ranks_(std::move(ranks)), first_slot_((group + 1) << kSlotBits), one_host_(one_host) {
  SRT_CHECK(group < kMaxGroups);
  const auto own = std::find(ranks_.begin(), ranks_.end(), whole.rank());
  SRT_CHECK(own != ranks_.end());
  rank_ = static_cast<Rank>(own - ranks_.begin());
}

Envelope SubgroupLink::outside(const Envelope& envelope) const {
  SRT_CHECK(envelope.slot < (1U << kSlotBits));
  Envelope there = envelope;
  there.peer = ranks_[static_cast<std::size_t>(envelope.peer)];
  there.slot += first_slot_;
  return there;
}

void SubgroupLink::send(const Envelope& envelope, ConstBytes data, Done done) {
  whole_.send(outside(envelope), data, std::move(done));
}

void SubgroupLink::recv(const Envelope& envelope, Bytes out, Done done) {
  whole_.recv(outside(envelope), out, std::move(done));
}

}  // namespace sirtaki::net
