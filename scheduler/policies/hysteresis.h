// Hysteresis: keeps a controller from going to and fro on noise.
//
// Used by controllers only. Pure value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sirtaki::scheduler {

// A change has to be wanted by two profiles in a row, in the same direction. After a change back the next one has to
// wait, longer each time: kShortest to kLongest profiles.
class Hysteresis {
 public:
  static constexpr int kShortest = 8;
  static constexpr int kLongest = 64;

  // `direction`: -1, +1: the change that this profile wants; 0: none. `urgent`: one profile is enough, and it does not
  // have to wait. Whether it may be made now.
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
  int since_ = 0;  // the last change
};

}  // namespace sirtaki::scheduler
