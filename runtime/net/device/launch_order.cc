#include "runtime/net/device/launch_order.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sirtaki::net {

Status LaunchSequencer::ready(Rank rank, const LaunchItem& item) {
  const auto [place, first] = waiting_.try_emplace(item.tag);
  Waiting& waiting = place->second;
  if (first) {
    waiting.ready.resize(static_cast<std::size_t>(ranks_));
    waiting.item = item;
  }
  const auto from = static_cast<std::size_t>(rank);
  if (waiting.item.set != item.set) {
    return {Code::kBug, "rank " + std::to_string(rank) + " is ready for tag " + std::to_string(item.tag.value) +
                            " in set " + std::to_string(item.set) + ", others in set " +
                            std::to_string(waiting.item.set)};
  }
  if (waiting.ready[from]) {
    return {Code::kBug, "rank " + std::to_string(rank) + " is ready twice for tag " + std::to_string(item.tag.value)};
  }
  waiting.ready[from] = true;
  waiting.item.priority = std::min(waiting.item.priority, item.priority);
  waiting.item.bytes = std::max(waiting.item.bytes, item.bytes);
  if (++waiting.count == ranks_) {
    waiting.completed = ++clock_;
    complete_.push_back(item.tag);
  }
  return {};
}

void LaunchSequencer::withdraw(Rank rank, OpTag tag) {
  const auto place = waiting_.find(tag);
  const auto from = static_cast<std::size_t>(rank);
  if (place == waiting_.end() || !place->second.ready[from]) {
    return;
  }
  place->second.ready[from] = false;
  if (--place->second.count == 0) {
    waiting_.erase(place);
  }
  withdrawn_.push_back({LaunchNotice::Kind::kWithdrawn, rank, tag});
}

std::vector<LaunchNotice> LaunchSequencer::take() {
  std::vector<LaunchNotice> notices = std::exchange(withdrawn_, {});
  std::vector<Waiting> placed;
  for (const OpTag tag : std::exchange(complete_, {})) {
    const auto place = waiting_.find(tag);
    if (place != waiting_.end() && place->second.count == ranks_) {
      placed.push_back(std::move(place->second));
      waiting_.erase(place);
    }
  }
  std::ranges::sort(placed, {}, [](const Waiting& one) { return std::pair(one.item.priority, one.completed); });
  for (const auto& [ready, count, item, completed] : placed) {
    notices.push_back({LaunchNotice::Kind::kPlaced, LaunchNotice::kAll, item.tag, item.set, item.bytes});
  }
  return notices;
}

std::vector<OpTag> LaunchMember::withdraw(const TagGroup& tags) {
  std::vector<OpTag> named;
  for (auto& [tag, asked] : waiting_) {
    if (tags.contains(tag) && !std::exchange(asked, true)) {
      named.push_back(tag);
    }
  }
  return named;
}

bool LaunchMember::withdrawn(OpTag tag) {
  const auto place = waiting_.find(tag);
  if (place == waiting_.end() || !place->second) {
    return false;
  }
  waiting_.erase(place);
  return true;
}

}  // namespace sirtaki::net
