// LastingLink: the bandwidth at which a link carries larger payloads than those it was measured with.
//
// A link reads faster with small payloads than it is, because they pass through the bursts of traffic shapers and the
// queues of network cards. A reading with less than kBeyondBurst bytes a step therefore counts only for payloads up to
// kMoreThanSeen times as large. For larger ones, the bandwidth is that of the measurement before the first step, or of
// larger payloads since then. Owned by AutoPolicy. Pure; bandwidths are in bytes per second, and 0 means unknown.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sirtaki::scheduler {

class LastingLink {
 public:
  static constexpr std::int64_t kBeyondBurst = 1 << 20;
  static constexpr std::int64_t kMoreThanSeen = 2;

  explicit LastingLink(std::int64_t bytes_per_second = 0) : lasting_(bytes_per_second) {}

  // Records what the link shows in two profiles in a row, with so many bytes a step. `largest`: no level sends more.
  // Requires steps that are as long as expected.
  void shown(std::int64_t bytes_per_second, std::int64_t sent, bool largest) {
    largest_ = largest ? largest_ + 1 : 0;
    if (sent >= kBeyondBurst || largest_ > kProfiles) {
      lasting_ = std::max(lasting_, bytes_per_second);
    }
  }
  // Record that steps with a larger payload than before were as long as expected, or longer, with the reading of the
  // link in the latter.
  void carried(std::int64_t sent) { carried_ = std::max(carried_, sent); }
  void failed(std::int64_t bytes_per_second) {
    lasting_ = std::min(lasting_, bytes_per_second);
    carried_ = 0;
    largest_ = 0;
  }

  // Returns the bandwidth for `bytes`, given a reading with `sent` bytes.
  std::int64_t rate(std::int64_t bytes, std::int64_t reading, std::int64_t sent) const {
    return bytes > std::max(kMoreThanSeen * sent, carried_) ? cautious(reading, sent) : reading;
  }
  // Returns a reading with `sent` bytes, but no more than lasts if it may be a burst.
  std::int64_t cautious(std::int64_t reading, std::int64_t sent) const {
    return lasting_ > 0 && sent < kBeyondBurst ? std::min(reading, lasting_) : reading;
  }

 private:
  static constexpr int kProfiles = 2;

  std::int64_t lasting_;
  std::int64_t carried_ = 0;  // the largest payload of trials that held
  int largest_ = 0;           // consecutive profiles with the largest payload
};

}  // namespace sirtaki::scheduler
