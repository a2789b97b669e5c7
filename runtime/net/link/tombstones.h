// Tombstones: cancelled tags with their causes, so that messages that arrive for them later are dropped.
// Plain container for one thread, bounded: the oldest tag is forgotten first. A tag may be reused after more than
// kCapacity further cancellations; runtime/engine/common/tags.h relies on this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/link/tag_group.h"

namespace sirtaki::net {

class Tombstones {
 public:
  static constexpr std::size_t kCapacity = 4096;

  // Adds a cause for `tags`. Returns false if all of them have one already; the first cause is kept.
  bool add(const TagGroup& tags, const Status& cause) {
    if (covers(tags)) {
      return false;
    }
    causes_of(tags.mask()).emplace(tags.first().value, cause);
    order_.push_back(tags);
    if (order_.size() > kCapacity) {
      erase(order_.front());
      order_.pop_front();
    }
    return true;
  }

  // Returns the cause for which `tag` was cancelled, or nullptr.
  const Status* find(OpTag tag) const {
    for (const Group& group : groups_) {
      const auto found = group.causes.find(tag.value & group.mask);
      if (found != group.causes.end()) {
        return &found->second;
      }
    }
    return nullptr;
  }

  // Forgets the groups inside `tags`. Requires that no message of these tags can still arrive.
  void forget(const TagGroup& tags) {
    std::erase_if(order_, [&](const TagGroup& group) {
      const bool over = tags.contains(group);
      if (over) {
        erase(group);
      }
      return over;
    });
  }

  std::size_t size() const { return order_.size(); }
  bool empty() const { return order_.empty(); }

 private:
  // Groups with the same mask; there are few masks.
  struct Group {
    std::uint64_t mask;
    std::unordered_map<std::uint64_t, Status> causes;
  };

  bool covers(const TagGroup& tags) const {
    return std::ranges::any_of(groups_, [&](const Group& group) {
      return (tags.mask() & group.mask) == group.mask && group.causes.contains(tags.first().value & group.mask);
    });
  }

  std::unordered_map<std::uint64_t, Status>& causes_of(std::uint64_t mask) {
    const auto found = std::ranges::find(groups_, mask, &Group::mask);
    return found != groups_.end() ? found->causes : groups_.emplace_back(Group{mask, {}}).causes;
  }

  void erase(const TagGroup& tags) {
    const auto found = std::ranges::find(groups_, tags.mask(), &Group::mask);
    found->causes.erase(tags.first().value);
    if (found->causes.empty()) {
      groups_.erase(found);
    }
  }

  std::vector<Group> groups_;
  std::deque<TagGroup> order_;
};

}  // namespace sirtaki::net
