// ScratchPool: memory of fragments in flight, reused for later ones.
//
// LocalUpdater owns it and uses it on the thread of the training. It keeps as many arrays as were ever in use at one
// time.
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
    // Best fit: the smallest array that is large enough, else the largest.
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
      // Growing a vector needs up to twice the memory, and copies elements that are no longer needed.
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
  // Returns the bytes of all arrays, in use or free.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<Array> free_;
  std::int64_t bytes_ = 0;
};

}  // namespace sirtaki::local_updates
