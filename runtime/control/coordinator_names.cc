// Names that no rank uses any more: all ranks forget them together, so that their uses are counted alike. Part of
// Coordinator.
#include <algorithm>
#include <utility>

#include "runtime/control/coordinator.h"

namespace sirtaki::control {

// Asks for some of the oldest names at a time; names that are still used move to the end.
void Coordinator::ask_unused() {
  if (asked_ || !joined_.empty() || names_.size() <= std::max(options_.names, std::size_t{1})) {
    return;
  }
  Asked asked;
  for (std::size_t left = std::min(oldest_.size(), options_.names / 8 + 1); left > 0; --left) {
    std::string name = std::move(oldest_.front());
    oldest_.pop_front();
    const Name& record = names_.at(name);
    if (!record.uses.empty()) {
      oldest_.push_back(std::move(name));
      continue;
    }
    asked.missing.add(record.members);
    asked.counts[std::move(name)] = std::nullopt;
  }
  if (asked.counts.empty()) {
    return;
  }
  for (const auto& [rank, uses] : left_uses_) {
    asked.missing.remove(RankSet::of(rank));
  }
  asked_ = std::move(asked);
  std::vector<std::string> names;
  for (const auto& [name, count] : asked_->counts) {
    names.push_back(name);
  }
  send_names(names, {}, true);
  // Others may still have to submit uses that a rank completed before it left.
  for (const auto& [rank, uses] : left_uses_) {
    record_unused(rank, uses);
  }
  if (asked_->missing.empty()) {
    forget_unused();
  }
}

// Names with the same set of ranks share a message.
void Coordinator::send_names(const std::vector<std::string>& names, const std::vector<std::string>& kept, bool asks) {
  std::map<std::vector<Rank>, Forgotten> by_members;
  for (const std::string& name : names) {
    by_members[names_.at(name).members.ranks()].names.push_back(name);
  }
  for (const std::string& name : kept) {
    by_members[names_.at(name).members.ranks()].kept.push_back(name);
  }
  for (auto& [ranks, part] : by_members) {
    RankSet members;
    for (const Rank rank : ranks) {
      members.add(rank);
    }
    if (asks) {
      send(std::move(members), AskUnused{std::move(part.names)});
    } else {
      send(std::move(members), std::move(part));
    }
  }
}

void Coordinator::record_unused(Rank rank, const std::unordered_map<std::string, std::uint64_t>& uses) {
  for (auto& [name, count] : asked_->counts) {
    if (!names_.at(name).members.contains(rank)) {
      continue;
    }
    const auto count_here = uses.find(name);
    if (count_here == uses.end() || count.value_or(count_here->second) != count_here->second) {
      asked_->kept.insert(name);
    } else {
      count = count_here->second;
    }
  }
}

void Coordinator::on(const RankSet& from, const Unused& message) {
  if (!asked_) {
    return;
  }
  std::unordered_map<std::string, std::uint64_t> uses;
  for (const Leaving::Count& count : message.counts) {
    uses[count.name] = count.uses;
  }
  for (const Rank rank : from.common(asked_->missing).ranks()) {
    record_unused(rank, uses);
  }
  asked_->missing.remove(from);
  if (asked_->missing.empty()) {
    forget_unused();
  }
}

void Coordinator::forget_unused() {
  const Asked asked = *std::exchange(asked_, std::nullopt);
  std::vector<std::string> forgotten;
  std::vector<std::string> kept;
  for (const auto& [name, count] : asked.counts) {
    const bool used = asked.kept.contains(name) || !names_.at(name).uses.empty() || !joined_.empty();
    (used ? kept : forgotten).push_back(name);
  }
  send_names(forgotten, kept, false);
  for (const std::string& name : forgotten) {
    names_.erase(name);
    for (auto& [rank, uses] : left_uses_) {
      uses.erase(name);
    }
    for (auto& [rank, uses] : last_words_) {
      uses.erase(name);
    }
  }
  oldest_.insert(oldest_.end(), kept.begin(), kept.end());
  if (!forgotten.empty()) {
    ask_unused();
  }
}

}  // namespace sirtaki::control
