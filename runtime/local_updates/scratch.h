// ScratchPool: memory of fragments in flight, used again by the next ones.
//
// Owned by LocalUpdater; the training's thread. Keeps as many arrays as were ever out at one time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sirtaki::local_updates {

class ScratchPool {
 public:
  using Array = std::vector<float>;

  Array take(std::int64_t numel) {
    const auto size = static_cast<std::size_t>(numel);
    // The smallest that is large enough, else the largest.
    auto best = free_.begin();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const bool fits = it->capacity() >= size;
      const bool best_fits = best->capacity() >= size;
      if (fits != best_fits ? fits : (it->capacity() < best->capacity()) == fits) {
        best = it;
      }
    }
    Array array;
    if (best != free_.end()) {
      array = std::move(*best);
      free_.erase(best);
    }
    if (array.capacity() < size) {
      // A vector that grows would take twice what it had, and copy what nobody wants.
      bytes_ -= static_cast<std::int64_t>(array.capacity() * sizeof(float));
      array = Array();
      array.reserve(size);
      bytes_ += static_cast<std::int64_t>(array.capacity() * sizeof(float));
    }
    array.resize(size);
    return array;
  }
  void give_back(Array array) {
    if (array.capacity() > 0) {
      free_.push_back(std::move(array));
    }
  }
  // Of all arrays, out or not.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<Array> free_;
  std::int64_t bytes_ = 0;
};

}  // namespace sirtaki::local_updates
