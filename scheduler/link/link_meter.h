// LinkMeter: latency and bandwidth of a rank's network link, from when its partitions started and finished.
//
// For: a StepProfile. Several partitions share the link and a partition also waits for ranks that are late, so the time
// of a single one says little. While the link is kept busy, bytes per time since it was idle are its bandwidth, and a
// late rank only lowers some of these readings: the upper quartile counts (after the delivery rate of BBR: Cardwell et
// al., 2016). Where steps have too few partitions for that, the time from the first start to the last completion has to
// do; also when they come to have too few, as with compression, for what was read before says nothing of the link from
// then on. Partitions that ran alone give the latency, the smallest counts.
// Owned by: the stream; used by the loop's thread. Pure: no I/O, no thread, no clock.
// Not for: agreement; ranks measure different values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "scheduler/link/link_model.h"

namespace sirtaki::scheduler {

struct LinkReading {
  std::int64_t latency_ns = 0;        // of one message
  std::int64_t bytes_per_second = 0;  // payload, one way

  friend bool operator==(const LinkReading&, const LinkReading&) = default;
};

class LinkMeter {
 public:
  // `ranks`: between which data travels over the network, hosts where these add up first.
  explicit LinkMeter(int ranks) : ranks_(ranks) {}

  // A partition of `payload` bytes was handed to the network, or came back complete. Times never go back.
  void started(std::int64_t now_ns);
  void finished(std::int64_t now_ns, std::int64_t payload);
  // What is in flight ends without being finished.
  void reset();

  // nullopt: too few partitions so far.
  std::optional<LinkReading> read() const;

 private:
  // Since nothing was in flight, or since the window before.
  struct Window {
    std::int64_t begin_ns = 0;
    double bytes = 0;  // on the link
    int completions = 0;
    bool from_idle = false;
  };

  // From the start of a partition to the first moment with nothing in flight.
  struct Busy {
    std::int64_t begin_ns = 0;
    double bytes = 0;
  };

  double link_bytes(std::int64_t payload) const;
  void count(std::int64_t now_ns, double bytes);
  void forget_old();

  int ranks_;
  int in_flight_ = 0;
  bool alone_ = false;  // the one in flight has been so since it started
  std::int64_t started_ns_ = 0;
  std::optional<Window> window_;
  Busy busy_;
  std::deque<double> rates_;       // bytes per second of the last windows
  std::deque<double> busy_rates_;  // the same of busy times
  int since_window_ = 0;           // completions
  int since_busy_ = 0;
  bool outdated_ = false;               // there were windows, but none of late
  LinkModel model_;                     // of partitions that ran alone
  std::deque<TransferSample> singles_;  // the same partitions
};

}  // namespace sirtaki::scheduler
