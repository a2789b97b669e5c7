// LinkModel: latency and bandwidth of one link, estimated from transfers that happened.
//
// For: partition size, credit and, later, the choice of codecs. Model: seconds = latency + bytes / bandwidth.
// Pure: no I/O, no thread, no clock; used by one thread. Not for: agreement; ranks estimate different values, so
// whatever follows from an estimate is decided by one of them and sent in a plan.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace sirtaki::scheduler {

struct TransferSample {
  std::int64_t bytes = 0;
  double seconds = 0;
};

struct LinkEstimate {
  double latency_seconds = 0;
  double bytes_per_second = 0;

  double transfer_seconds(std::int64_t bytes) const {
    return latency_seconds + static_cast<double>(bytes) / bytes_per_second;
  }
};

class LinkModel {
 public:
  // Transfers the estimate looks back on.
  static constexpr std::size_t kWindow = 64;
  // Fewer say nothing.
  static constexpr std::size_t kMinSamples = 8;

  // Samples without positive bytes and finite, positive seconds are ignored.
  void add(TransferSample sample);

  // nullopt below kMinSamples. A line through the window's samples: its slope is the median slope between two of them,
  // its height their median height, so a few wild ones (the process paused, somebody else's burst) do not move it. When
  // all sizes are alike, latency and bandwidth cannot be told apart and all time counts as bandwidth.
  std::optional<LinkEstimate> estimate() const;

  std::size_t samples() const { return count_; }  // in the window

 private:
  std::array<TransferSample, kWindow> window_{};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
};

}  // namespace sirtaki::scheduler
