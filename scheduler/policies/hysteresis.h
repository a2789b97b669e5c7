// Hysteresis: keeps a controller from oscillating on noise.
//
// Pure value, internal to controllers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sirtaki::scheduler {

// Two consecutive profiles have to want a change in the same direction. After a reversal the next change has to wait
// for kShortest to kLongest profiles, longer each time.
class Hysteresis {
 public:
  static constexpr int kShortest = 8;
  static constexpr int kLongest = 64;

  // Returns true if the change may be made now. `direction` is the change that this profile wants: -1, +1, or 0 for
  // none. With `urgent` one profile suffices, and the change need not wait.
  bool wants(int direction, bool urgent = false) {
    ++since_;
    const bool again = direction != 0 && (urgent || direction == wanted_);
    wanted_ = direction;
    if (!again || (!urgent && since_ < wait_)) {
      return false;
    }
    if (last_ != 0 && direction != last_) {
      wait_ = std::clamp(2 * wait_, kShortest, kLongest);
    }
    last_ = direction;
    wanted_ = 0;
    since_ = 0;
    return true;
  }

 private:
  int wanted_ = 0;
  int last_ = 0;
  int wait_ = 0;   // profiles
  int since_ = 0;  // profiles since the last change
};

}  // namespace sirtaki::scheduler
