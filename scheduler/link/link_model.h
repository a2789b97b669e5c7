// LinkModel: latency and bandwidth of one link, estimated from past transfers.
//
// Serves the choice of partition size and credit. Model: seconds = latency + bytes / bandwidth. Ranks estimate
// different values; one rank decides by its estimate and sends the decision in a plan. Pure: no I/O, no thread, no
// clock; used by one thread.
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
  // Number of past transfers in the estimate.
  static constexpr std::size_t kWindow = 64;
  // Fewer transfers give no estimate.
  static constexpr std::size_t kMinSamples = 8;

  // Adds a sample. Samples without positive bytes and finite, positive seconds are ignored.
  void add(TransferSample sample);

  // Returns a line through the samples; nullopt below kMinSamples. Its slope is the median slope between two samples,
  // and its height their median height, so a few wild samples (a pause of the process, a burst of other traffic) do not
  // move it. If all sizes are alike, latency and bandwidth cannot be separated, and all time counts as bandwidth.
  std::optional<LinkEstimate> estimate() const;

  std::size_t samples() const { return count_; }  // in the window

 private:
  std::array<TransferSample, kWindow> window_{};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
};

}  // namespace sirtaki::scheduler
