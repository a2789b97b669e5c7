// RateProbe: when to send more for one profile, to see what the link carries.
//
// A link that got faster does not show where little is sent: that takes as long as ranks are apart. So now and then
// twice as much is sent; if steps wait no longer it stays, and twice that is tried next; if they do, the rate before
// comes back, and the next trial waits twice as long (after the bandwidth probes of BBR: Cardwell et al., 2016). Late
// ranks can only make a link read slower, and a busy link reads as it is. So it got faster when it reads faster than
// when it was last too slow: a reason not to wait.
// Used by controllers only. Pure value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sirtaki::scheduler {

class RateProbe {
 public:
  // Profiles between a trial that failed, or a change for another reason, and the next one.
  static constexpr int kShortest = 8;
  static constexpr int kLongest = 64;
  // No trial follows a change sooner, however fast the link reads: readings are of some steps before, too.
  static constexpr int kLeast = 2;
  // By so much faster than when it was too slow.
  static constexpr std::int64_t kFasterPermille = 1160;

  // The rate in force is on trial.
  bool on() const { return before_ != 0; }

  // A profile at a rate that is not on trial and stays. Whether to try more.
  bool due(std::int64_t bytes_per_second) {
    ++since_;
    const bool faster = limit_ != 0 && bytes_per_second / kFasterPermille > limit_ / 1000;
    return since_ >= wait_ || (faster && since_ >= kLeast);
  }

  // `before`: the rate that comes back if steps wait longer; above 0.
  void begin(std::int64_t before) { before_ = before; }
  // More fits, and there is no higher rate to try.
  void settle() {
    before_ = 0;
    since_ = 0;
  }
  // Steps wait longer, with the link at `bytes_per_second`. Returns the rate before.
  std::int64_t fail(std::int64_t bytes_per_second) {
    wait_ = std::min(2 * wait_, kLongest);
    limit_ = bytes_per_second;
    since_ = 0;
    return std::exchange(before_, 0);
  }
  // The rate changed for another reason; down, because the link was too slow at `limit`; 0: up.
  void changed(std::int64_t limit) {
    *this = {};
    limit_ = limit;
  }

 private:
  std::int64_t before_ = 0;  // 0: none
  std::int64_t limit_ = 0;   // bytes per second that were too slow; 0: never
  int since_ = 0;            // profiles at this rate
  int wait_ = kShortest;
};

}  // namespace sirtaki::scheduler
