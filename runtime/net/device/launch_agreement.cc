#include "runtime/net/device/launch_agreement.h"

#include <algorithm>
#include <string>

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

Status breach(const std::string& what, const LaunchWord& word) {
  return corrupt("it " + what + " set " + std::to_string(word.set));
}

}  // namespace

Status LaunchAgreement::take(Rank from, const LaunchWord& word, LaunchSequencer& order) {
  switch (word.kind) {
    case Kind::kRanks:
      return name_ranks(from, word);
    case Kind::kAble:
      return able(from, word, order);
    default:
      return connected(from, word, order);
  }
}

Status LaunchAgreement::name_ranks(Rank from, const LaunchWord& word) {
  const auto [place, first] = named_.try_emplace(from, Named{word.set, {}});
  Named& named = place->second;
  if (named.own != word.set || word.number > size_ / kRanksPerWord) {
    return breach("names unknown ranks, or too many, in", word);
  }
  for (int bit = 0; bit < kRanksPerWord; ++bit) {
    if ((word.tag.value >> bit & 1U) == 0) {
      continue;
    }
    const Rank rank = word.number * kRanksPerWord + bit;
    if (rank >= size_ || (!named.ranks.empty() && rank <= named.ranks.back())) {
      return breach("names unknown ranks, or too many, in", word);
    }
    named.ranks.push_back(rank);
  }
  return {};
}

Status LaunchAgreement::able(Rank from, const LaunchWord& word, LaunchSequencer& order) {
  const auto named = named_.extract(from);
  if (named.empty() || named.mapped().own != word.set || !std::ranges::binary_search(named.mapped().ranks, from)) {
    return breach("asks for, but does not belong to,", word);
  }
  const LaunchSet set = order.add(named.mapped().ranks);
  const auto [place, first] = agreements_.try_emplace(set, Agreement{Phase::kAsking, word.number, {}});
  Agreement& agreement = place->second;
  if (!agreement.members.emplace(from, Member{word.set, word.number}).second) {
    return breach("asks twice for", word);
  }
  if (const std::optional<Rank> lost = order.lost_of(set)) {
    answers_.emplace_back(from, LaunchWord{Kind::kGone, OpTag(), *lost});
  } else if (agreement.phase == Phase::kRefused) {
    refuse(set, agreement, agreement.refused_by, from);
  } else if (word.number == 0 || word.number != agreement.version) {
    refuse(set, agreement, from);
  } else if (agreement.members.size() == order.ranks_of(set).size()) {
    agreement.phase = Phase::kConnecting;
    order.connect(set);
  }
  return {};
}

Status LaunchAgreement::connected(Rank from, const LaunchWord& word, const LaunchSequencer& order) {
  const auto place = agreements_.find(word.set);
  if (place == agreements_.end() || !connects(place->second) || !order.contains(word.set, from)) {
    return breach("connects without need", word);
  }
  Agreement& agreement = place->second;
  if (std::exchange(agreement.members.at(from).connected, word.number == 1)) {
    return breach("connects twice", word);
  }
  if (agreement.phase == Phase::kRefused) {
    return {};  // it has crossed the refusal
  }
  if (word.number != 1) {
    refuse(word.set, agreement, from);  // at once: the others launch nothing while they try
    return {};
  }
  const auto& members = agreement.members;
  if (std::ranges::any_of(members, [](const auto& member) { return !member.second.connected; })) {
    return {};
  }
  agreement.phase = Phase::kOpen;
  for (const auto& [rank, member] : members) {
    answers_.emplace_back(rank, LaunchWord{Kind::kOpen, OpTag(member.own), 0, word.set});
  }
  return {};
}

// Returns whether ranks may report that they have connected, or could not.
bool LaunchAgreement::connects(const Agreement& agreement) {
  return agreement.phase == Phase::kConnecting ||
         (agreement.phase == Phase::kRefused && agreement.members.at(agreement.refused_by).connected);
}

void LaunchAgreement::refuse(LaunchSet set, Agreement& agreement, Rank by) {
  agreement.phase = Phase::kRefused;
  agreement.refused_by = by;
  for (const auto& [rank, member] : agreement.members) {
    refuse(set, agreement, by, rank);
  }
}

void LaunchAgreement::refuse(LaunchSet set, const Agreement& agreement, Rank by, Rank to) {
  const auto version = static_cast<std::uint64_t>(agreement.members.at(by).version);
  answers_.emplace_back(to, LaunchWord{Kind::kRefused, OpTag(agreement.members.at(to).own), by, set, version});
}

LaunchWord LaunchAgreement::connect_word(LaunchSet set, Rank to) const {
  return {Kind::kConnect, OpTag(agreements_.at(set).members.at(to).own), 0, set};
}

}  // namespace sirtaki::net
