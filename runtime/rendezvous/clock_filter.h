// ClockFilter: how far another host's monotonic clock is from ours, from round trips. Pure; owned by Server, one a
// peer.
//
// The reply's clock is taken as read in the middle of the round trip, so the error is at most half of it: among the
// last few round trips the shortest one counts.
#pragma once

#include <array>
#include <cstddef>

#include "runtime/base/types.h"

namespace sirtaki::rendezvous {

class ClockFilter {
 public:
  static constexpr std::size_t kWindow = 16;

  // `sent` and `received` on our clock, `theirs` on the other one in between. A round trip that ends before it began
  // is ignored.
  void add(TimePoint sent, TimePoint received, TimePoint theirs);
  // Their clock - our clock; zero before the first round trip.
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
