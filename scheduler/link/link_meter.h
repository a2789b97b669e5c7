// LinkMeter: latency and bandwidth of the network link of a rank, from the start and end times of its partitions.
//
// Feeds StepProfile. The duration of a single partition says little, because several partitions share the link, and a
// partition also waits for late ranks.
//   - Bandwidth: while the link is busy, bytes per time since it was last idle. A late rank only lowers some of these
//     readings, so the upper quartile counts (compare the delivery rate of BBR: Cardwell et al., 2016). If steps have
//     too few partitions for that, the meter uses the time from the first start to the last completion. It also does so
//     if the number of partitions drops, for example with compression, because older readings no longer describe the
//     link.
//   - Latency: the smallest duration of a partition that ran alone, and at least half the round trip that the transport
//     has measured: a late rank finds that the data of the others have crossed the link. The first bytes after an idle
//     time arrive a latency later, which counts for no bandwidth.
// The stream owns the meter and calls it on the loop thread. Pure: no I/O, no thread, no clock. Ranks measure different
// values; the exchange of profiles makes them agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "scheduler/link/link_model.h"

namespace sirtaki::scheduler {

struct LinkReading {
  std::int64_t latency_ns = 0;        // one exchange
  std::int64_t bytes_per_second = 0;  // payload, one way

  friend bool operator==(const LinkReading&, const LinkReading&) = default;
};

class LinkMeter {
 public:
  // Record that the network accepted a partition, and that a partition is complete for which so many bytes left the
  // host, in so many exchanges one behind the other. Times never decrease.
  void started(std::int64_t now_ns);
  void finished(std::int64_t now_ns, double bytes, std::int64_t exchanges);
  // Drops all partitions in flight.
  void reset();
  // Sets the smallest latency of an exchange that the link can have.
  void set_least_latency(std::int64_t latency_ns) { least_latency_ns_ = latency_ns; }

  // Returns the estimate; nullopt after too few partitions.
  std::optional<LinkReading> read() const;

 private:
  // Completions since the link was idle, or since the previous window.
  struct Window {
    std::int64_t begin_ns = 0;
    double bytes = 0;  // on the link
    int completions = 0;
    bool from_idle = false;
  };

  // The time from the start of a partition to the first moment with nothing in flight.
  struct Busy {
    std::int64_t begin_ns = 0;
    double bytes = 0;
  };

  // A partition that ran alone.
  struct Single {
    TransferSample sample;
    std::int64_t exchanges = 0;
  };

  void count(std::int64_t now_ns, double bytes);
  void forget_old();
  std::int64_t shortest_window() const;

  std::int64_t least_latency_ns_ = 0;
  int in_flight_ = 0;
  bool alone_ = false;  // the partition in flight has been alone since its start
  std::int64_t started_ns_ = 0;
  std::optional<Window> window_;
  Busy busy_;
  std::deque<double> rates_;       // bytes per second of the last windows
  std::deque<double> busy_rates_;  // bytes per second of the last busy times
  int since_window_ = 0;           // completions
  int since_busy_ = 0;
  bool outdated_ = false;       // all windows are too old
  LinkModel model_;             // fed by partitions that ran alone
  std::deque<Single> singles_;  // the same partitions
};

}  // namespace sirtaki::scheduler
