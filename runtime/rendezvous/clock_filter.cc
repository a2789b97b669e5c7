#include "runtime/rendezvous/clock_filter.h"

#include <algorithm>

namespace sirtaki::rendezvous {

void ClockFilter::add(TimePoint sent, TimePoint received, TimePoint theirs) {
  const Duration round_trip = received - sent;
  if (round_trip < Duration::zero()) {
    return;
  }
  ring_[samples_ % kWindow] = {round_trip, theirs - (sent + round_trip / 2)};
  ++samples_;
}

Duration ClockFilter::offset() const {
  const auto end = ring_.begin() + static_cast<std::ptrdiff_t>(std::min(samples_, kWindow));
  const auto best = std::min_element(ring_.begin(), end,
                                     [](const Sample& a, const Sample& b) { return a.round_trip < b.round_trip; });
  return best == end ? Duration::zero() : best->offset;
}

}  // namespace sirtaki::rendezvous
