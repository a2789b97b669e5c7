// RateProbe: decides when to try a higher rate for one profile, to measure the capacity of the link.
//
// While little is sent, a link that became faster does not show it, because steps then last as long as ranks are late.
// The probe therefore tries a higher rate from time to time. If the rate is worth its cost, it stays, and a higher one
// is tried next; if not, the previous rate returns, and the next trial waits twice as long (compare the bandwidth
// probes of BBR: Cardwell et al., 2016).
// Two events bring a trial forward. A reading above the mean at this rate: it comes from the link, because late ranks
// do not become punctual all at once. A fall of the rate: the link may recover soon, and the first guess may be too
// low. Pure value, internal to controllers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sirtaki::scheduler {

class RateProbe {
 public:
  // Profiles between a failed trial and the next one.
  static constexpr int kShortest = 8;
  static constexpr int kLongest = 64;
  // Profiles between a change for another reason and the first trial, except in a search. No trial follows a change
  // sooner, however fast the link reads, because the first readings include steps before the change.
  static constexpr int kLeast = 3;
  // The search after a fall: its length in profiles, and the distance between two of its trials.
  static constexpr int kSearch = 64;
  static constexpr int kSearchEvery = 4;
  // A reading this much above the mean counts as faster.
  static constexpr std::int64_t kFasterPermille = 1160;

  // Returns true if the rate in force is on trial.
  bool on() const { return before_ != 0; }

  // Counts a profile at a rate that is not on trial and stays. Returns true if a trial is due.
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

  // Begins a trial. `before` is the rate that returns if the trial is not worth its cost; above 0.
  void begin(std::int64_t before) { before_ = before; }
  std::int64_t before() const { return before_; }
  // Ends a trial with success, without a higher rate to try.
  void accept() {
    before_ = 0;
    since_ = 0;
  }
  // Ends a trial without success. Returns the previous rate.
  std::int64_t fail() {
    if (before_ >= fell_from_ / 4 * 3) {
      search_ = 0;
    }
    wait_ = search_ > 0 ? wait_ : std::clamp(2 * wait_, kShortest, kLongest);
    since_ = 0;
    return std::exchange(before_, 0);
  }
  // Records a change of the rate for another reason.
  void changed() {
    const auto [search, from] = std::pair(search_, fell_from_);
    *this = {};
    search_ = search;
    fell_from_ = from;
    wait_ = search_ > 0 ? kShortest : kLeast;
  }
  // Records a fall from this rate because steps waited.
  void fell(std::int64_t from) {
    const std::int64_t highest = search_ > 0 ? std::max(fell_from_, from) : from;
    *this = {};
    search_ = kSearch;
    fell_from_ = highest;
    wait_ = kShortest;
  }

 private:
  static constexpr int kMean = 8;

  std::int64_t before_ = 0;  // rate before the trial; 0: none
  std::int64_t mean_ = 0;    // mean of readings at this rate, bytes per second
  int since_ = 0;            // profiles at this rate
  int wait_ = kLeast;
  // Remaining profiles of the search. It ends early when the rate is close to that before the fall.
  int search_ = 0;
  std::int64_t fell_from_ = 0;  // rate before the fall
};

}  // namespace sirtaki::scheduler
