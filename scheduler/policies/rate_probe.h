// RateProbe: when to send more for one profile, to see what the link carries.
//
// A link that got faster does not show where little is sent: that takes as long as ranks are apart. So now and then
// more is sent; if that is worth what it costs it stays, and more than that is tried next; if not, the rate before
// comes back, and the next trial waits twice as long (after the bandwidth probes of BBR: Cardwell et al., 2016). A link
// that reads faster than it did at this rate is a reason not to wait: late ranks do not get earlier all at once. Nor
// does it wait for long in the time after a fall: the link may recover as soon, and the first guess may be low.
// Used by controllers only. Pure value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sirtaki::scheduler {

class RateProbe {
 public:
  // Profiles between a trial that failed and the next one.
  static constexpr int kShortest = 8;
  static constexpr int kLongest = 64;
  // Between a change for another reason and the first trial, but in a search. None follows any change sooner, however
  // fast the link reads: the first readings are of some steps before, too.
  static constexpr int kLeast = 3;
  // After a fall: profiles in which trials do not get rarer, and between two of them.
  static constexpr int kSearch = 64;
  static constexpr int kSearchEvery = 4;
  // So much faster than on average.
  static constexpr std::int64_t kFasterPermille = 1160;

  // The rate in force is on trial.
  bool on() const { return before_ != 0; }

  // A profile at a rate that is not on trial and stays. Whether to try more.
  bool due(std::int64_t bytes_per_second) {
    const bool faster = since_ >= kLeast && bytes_per_second / kFasterPermille > mean_ / 1000;
    // The first readings weigh as much as later ones.
    mean_ += (bytes_per_second - mean_) / std::min(++since_, kMean);
    if (search_ == 0) {
      return faster || since_ >= wait_;
    }
    const bool first = search_-- == kSearch - kLeast + 1;
    return faster || first || since_ >= kSearchEvery;
  }

  // `before`: the rate that comes back if more is not worth its cost; above 0.
  void begin(std::int64_t before) { before_ = before; }
  std::int64_t before() const { return before_; }
  // It was worth it, and there is no higher rate to try.
  void accept() {
    before_ = 0;
    since_ = 0;
  }
  // It was not. Returns the rate before.
  std::int64_t fail() {
    if (before_ >= fell_from_ / 4 * 3) {
      search_ = 0;
    }
    wait_ = search_ > 0 ? wait_ : std::clamp(2 * wait_, kShortest, kLongest);
    since_ = 0;
    return std::exchange(before_, 0);
  }
  // The rate changed for another reason.
  void changed() {
    const auto [search, from] = std::pair(search_, fell_from_);
    *this = {};
    search_ = search;
    fell_from_ = from;
    wait_ = search_ > 0 ? kShortest : kLeast;
  }
  // From this rate, because steps waited.
  void fell(std::int64_t from) {
    const std::int64_t highest = search_ > 0 ? std::max(fell_from_, from) : from;
    *this = {};
    search_ = kSearch;
    fell_from_ = highest;
    wait_ = kShortest;
  }

 private:
  static constexpr int kMean = 8;

  std::int64_t before_ = 0;  // 0: none
  std::int64_t mean_ = 0;    // of readings at this rate, bytes per second
  int since_ = 0;            // profiles at this rate
  int wait_ = kLeast;
  int search_ = 0;              // profiles that are left of it; none where the rate is about that before the fall
  std::int64_t fell_from_ = 0;  // that rate
};

}  // namespace sirtaki::scheduler
