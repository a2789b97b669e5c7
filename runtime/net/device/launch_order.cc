#include "runtime/net/device/launch_order.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace sirtaki::net {

namespace {

Status misuse(Rank rank, const LaunchItem& item, const std::string& how) {
  return {Code::kBug,
          "rank " + std::to_string(rank) + " is ready " + how + " for tag " + std::to_string(item.tag.value)};
}

}  // namespace

LaunchSequencer::LaunchSequencer(int ranks) : ranks_(ranks), sets_(kFirstProcessSet) {
  for (Set& set : sets_) {
    set.ranks.resize(static_cast<std::size_t>(ranks));
    std::iota(set.ranks.begin(), set.ranks.end(), 0);
  }
}

LaunchSet LaunchSequencer::add(const std::vector<Rank>& ranks) {
  const auto [place, added] = numbers_.emplace(ranks, static_cast<LaunchSet>(sets_.size()));
  if (added) {
    const auto gone = std::ranges::find_if(ranks, [this](Rank rank) { return gone_.contains(rank); });
    sets_.push_back({ranks, gone == ranks.end() ? std::nullopt : std::optional(*gone)});
  }
  return place->second;
}

bool LaunchSequencer::contains(LaunchSet set, Rank rank) const {
  return set < sets_.size() && std::ranges::binary_search(sets_[set].ranks, rank);
}

Status LaunchSequencer::ready(Rank rank, const LaunchItem& item) {
  if (!contains(item.set, rank)) {
    return misuse(rank, item, "in a set of others, " + std::to_string(item.set) + ",");
  }
  if (lost_of(item.set)) {
    return {};
  }
  const auto [place, first] = waiting_.try_emplace(item.tag);
  Waiting& waiting = place->second;
  if (first) {
    waiting.ready.resize(static_cast<std::size_t>(ranks_));
    waiting.item = item;
  }
  const auto from = static_cast<std::size_t>(rank);
  if (waiting.item.set != item.set) {
    return misuse(rank, item, "in set " + std::to_string(item.set) + ", others in " + std::to_string(waiting.item.set));
  }
  if (waiting.ready[from]) {
    return misuse(rank, item, "twice");
  }
  waiting.ready[from] = true;
  waiting.item.priority = std::min(waiting.item.priority, item.priority);
  waiting.item.bytes = std::max(waiting.item.bytes, item.bytes);
  ++waiting.count;
  if (complete(waiting)) {
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
  const LaunchSet set = place->second.item.set;
  place->second.ready[from] = false;
  if (--place->second.count == 0) {
    waiting_.erase(place);
  }
  withdrawn_.push_back({LaunchNotice::Kind::kWithdrawn, tag, set, rank});
}

std::vector<LaunchSet> LaunchSequencer::lose(Rank rank) {
  gone_.insert(rank);
  std::vector<LaunchSet> lost;
  for (LaunchSet set = 0; set < sets_.size(); ++set) {
    if (!lost_of(set) && contains(set, rank)) {
      sets_[set].lost = rank;
      lost.push_back(set);
    }
  }
  std::erase_if(waiting_, [this](const auto& entry) { return lost_of(entry.second.item.set).has_value(); });
  std::erase_if(connecting_, [this](LaunchSet set) { return lost_of(set).has_value(); });
  return lost;
}

std::vector<LaunchNotice> LaunchSequencer::take() {
  std::vector<LaunchNotice> notices = std::exchange(withdrawn_, {});
  for (const LaunchSet set : std::exchange(connecting_, {})) {
    notices.push_back({LaunchNotice::Kind::kConnect, OpTag(), set});
  }
  std::vector<Waiting> placed;
  for (const OpTag tag : std::exchange(complete_, {})) {
    const auto place = waiting_.find(tag);
    if (place != waiting_.end() && complete(place->second)) {
      placed.push_back(std::move(place->second));
      waiting_.erase(place);
    }
  }
  std::ranges::sort(placed, {}, [](const Waiting& one) { return std::pair(one.item.priority, one.completed); });
  for (const auto& [ready, count, item, completed] : placed) {
    notices.push_back({LaunchNotice::Kind::kPlaced, item.tag, item.set, -1, item.bytes});
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
