// Tombstones: the tags that were cancelled and why, so that what arrives for them later is dropped.
// Plain container of one thread, bounded: the oldest is forgotten first.
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

class Tombstones {
 public:
  explicit Tombstones(std::size_t capacity = 4096) : capacity_(capacity) {}

  void add(OpTag tag, const Status& cause) {
    if (!causes_.emplace(tag, cause).second) {
      return;
    }
    order_.push_back(tag);
    if (order_.size() > capacity_) {
      causes_.erase(order_.front());
      order_.pop_front();
    }
  }

  // Why `tag` was cancelled; nullptr when it was not.
  const Status* find(OpTag tag) const {
    if (causes_.empty()) {
      return nullptr;
    }
    const auto found = causes_.find(tag);
    return found == causes_.end() ? nullptr : &found->second;
  }

  std::size_t size() const { return causes_.size(); }

 private:
  std::size_t capacity_;
  std::unordered_map<OpTag, Status> causes_;
  std::deque<OpTag> order_;
};

}  // namespace sirtaki::net
