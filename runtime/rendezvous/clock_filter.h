// ClockFilter: offset of the monotonic clock of another host, estimated from round trips. Pure. Owned by: Server, one
// for each peer.
//
// The estimate assumes that the peer read its clock in the middle of the round trip, so its error is at most half the
// round trip. The shortest of the last few round trips therefore counts.
#pragma once

#include <array>
#include <cstddef>

#include "runtime/base/types.h"

namespace sirtaki::rendezvous {

class ClockFilter {
 public:
  static constexpr std::size_t kWindow = 16;

  // Adds a round trip: `sent` and `received` by the local clock, `theirs` by the clock of the peer in between. Ignores
  // a round trip that ends before it began.
  void add(TimePoint sent, TimePoint received, TimePoint theirs);
  // Returns the clock of the peer minus the local clock; zero before the first round trip.
  Duration offset() const;
  std::size_t samples() const { return samples_; }  // since the start

 private:
  struct Sample {
    Duration round_trip{};
    Duration offset{};
  };
  std::array<Sample, kWindow> ring_{};
  std::size_t samples_ = 0;
};

}  // namespace sirtaki::rendezvous
