// TagTable: a multimap from (tag, slot), first in first out, from which all entries of a group of tags can be taken.
// Plain container for one thread. Slots of a tag are searched linearly, because a tag has few entries at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/net/link/tag_group.h"

namespace sirtaki::net {

template <class T>
class TagTable {
 public:
  void push(OpTag tag, std::uint32_t slot, T value) {
    by_tag_[tag].push_back(Entry{slot, std::move(value)});
    ++size_;
  }

  // Returns the oldest entry of (tag, slot), or nullptr. Valid until the next change.
  T* find(OpTag tag, std::uint32_t slot) {
    return find_if(tag, slot, [](const T&) { return true; });
  }

  template <class Predicate>
  T* find_if(OpTag tag, std::uint32_t slot, Predicate predicate) {
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end()) {
      return nullptr;
    }
    for (Entry& entry : found->second) {
      if (entry.slot == slot && predicate(entry.value)) {
        return &entry.value;
      }
    }
    return nullptr;
  }

  std::optional<T> take(OpTag tag, std::uint32_t slot) {
    return take_if(tag, slot, [](const T&) { return true; });
  }

  template <class Predicate>
  std::optional<T> take_if(OpTag tag, std::uint32_t slot, Predicate predicate) {
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end()) {
      return std::nullopt;
    }
    auto& entries = found->second;
    const auto it = std::find_if(entries.begin(), entries.end(),
                                 [&](const Entry& entry) { return entry.slot == slot && predicate(entry.value); });
    if (it == entries.end()) {
      return std::nullopt;
    }
    std::optional<T> value(std::move(it->value));
    entries.erase(it);
    --size_;
    if (entries.empty()) {
      by_tag_.erase(found);
    }
    return value;
  }

  std::vector<T> take_tags(const TagGroup& tags) {
    std::vector<T> values;
    if (tags.single()) {
      const auto found = by_tag_.find(tags.first());
      if (found != by_tag_.end()) {
        move_out(found->second, values);
        by_tag_.erase(found);
      }
      return values;
    }
    for (auto it = by_tag_.begin(); it != by_tag_.end();) {
      if (tags.contains(it->first)) {
        move_out(it->second, values);
        it = by_tag_.erase(it);
      } else {
        ++it;
      }
    }
    return values;
  }

  template <class Predicate>
  std::vector<T> take_where(Predicate predicate) {
    std::vector<T> values;
    for (auto it = by_tag_.begin(); it != by_tag_.end();) {
      auto& entries = it->second;
      const auto rest = std::stable_partition(entries.begin(), entries.end(),
                                              [&](const Entry& entry) { return !predicate(entry.value); });
      for (auto entry = rest; entry != entries.end(); ++entry) {
        values.push_back(std::move(entry->value));
        --size_;
      }
      entries.erase(rest, entries.end());
      it = entries.empty() ? by_tag_.erase(it) : std::next(it);
    }
    return values;
  }

  std::vector<T> take_all() {
    std::vector<T> values;
    for (auto& [tag, entries] : by_tag_) {
      move_out(entries, values);
    }
    by_tag_.clear();
    return values;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct Entry {
    std::uint32_t slot;
    T value;
  };

  void move_out(std::vector<Entry>& entries, std::vector<T>& values) {
    size_ -= entries.size();
    for (Entry& entry : entries) {
      values.push_back(std::move(entry.value));
    }
  }

  std::unordered_map<OpTag, std::vector<Entry>> by_tag_;
  std::size_t size_ = 0;
};

}  // namespace sirtaki::net
