// Ranks that leave in order: what still completes without them, and what never can. Part of Coordinator.
#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/control/coordinator.h"

namespace sirtaki::control {
namespace {

// At the end of a job all ranks leave within moments of each other: they are told of in few messages.
constexpr Duration kLeaveLinger = std::chrono::milliseconds(20);

}  // namespace

Status Coordinator::left_status(Rank rank, const std::string& what) {
  return {
      Code::kPeerLost,
      "rank " + std::to_string(rank) + " has shut down, so " + what +
          " can never complete. Likely cause: it ended its work, or failed, while others still had steps to do; give "
          "all ranks the same number of steps, or call join() behind the last one",
      {rank, what}};
}

// A rank that left in order stands in for itself where it has seen the use through; where it has not, nobody ever will.
void Coordinator::count_left(const std::string& name, std::uint64_t use_number) {
  Name& record = record_of(name);
  for (const auto& [rank, uses] : left_uses_) {
    const auto it = record.uses.find(use_number);
    if (it == record.uses.end()) {
      return;
    }
    Use& use = it->second;
    if (use.announced.contains(rank) || !record.members.contains(rank)) {
      continue;
    }
    const auto count = uses.find(name);
    if (count == uses.end() || count->second <= use_number) {
      cancel(name, use_number, left_status(rank, "'" + name + "'"), true);
    } else {
      use.metas.front().ranks.add(rank);
      use.announced.add(rank);
    }
  }
}

void Coordinator::on_last_word(const RankSet& from, const Leaving& message, TimePoint now) {
  for (const Rank rank : from.ranks()) {
    auto& uses = last_words_[rank];
    for (const Leaving::Count& count : message.counts) {
      uses[count.name] = count.uses;
    }
    // Its notice may come later, when the last of those it relays for has gone: nothing waits for it that long.
    if (relayed() && !left_uses_.contains(rank)) {
      finish_left(rank, now);
    }
  }
}

void Coordinator::on_left(Rank rank, TimePoint now) {
  if (!relayed()) {
    finish_left(rank, now);
  } else if (!left_uses_.contains(rank)) {
    awaiting_last_word_[rank] = now + last_word_wait_;
  }
}

// A rank may end before it has anything to say, and a relay that ends may take the word of another with it.
void Coordinator::give_up_last_words(TimePoint now) {
  const std::map<Rank, TimePoint> waited = awaiting_last_word_;
  for (const auto& [rank, due] : waited) {
    if (due <= now) {
      finish_left(rank, now);
    }
  }
}

void Coordinator::finish_left(Rank rank, TimePoint now) {
  if (relayed()) {
    unnotified_.push_back(rank);
    notify_left_at_ = notify_left_at_.value_or(now + kLeaveLinger);
  }
  awaiting_last_word_.erase(rank);
  stall_.on_gone(rank);
  left_.push_back(rank);
  // Every rank that waits in join() gets an error, and goes on by itself.
  stall_.set_joined(joined_ranks(), false);
  joined_.clear();
  left_uses_[rank] = std::move(last_words_[rank]);
  std::vector<std::pair<std::string, std::uint64_t>> pending;
  for (const auto& [name, record] : names_) {
    for (const auto& [number, use] : record.uses) {
      pending.emplace_back(name, number);
    }
  }
  for (const auto& [name, number] : pending) {
    count_left(name, number);
    decide(name, number);
  }
  if (asked_ && asked_->missing.contains(rank)) {
    // Its last word is its answer; the others still have to give theirs.
    record_unused(rank, left_uses_[rank]);
    asked_->missing.remove(RankSet::of(rank));
    if (asked_->missing.empty()) {
      forget_unused();
    }
  }
  std::vector<std::string> refused;
  for (const auto& [name, opening] : openings_) {
    if (opening.members.contains(rank)) {
      refused.push_back(name);
    }
  }
  for (const std::string& name : refused) {
    refuse_opening(name, left_status(rank, "stream '" + name + "'"));
  }
}

// The first of these ranks that has left.
std::optional<Rank> Coordinator::left_of(const RankSet& members) const {
  const auto found = std::ranges::find_if(left_, [&](Rank rank) { return members.contains(rank); });
  return found == left_.end() ? std::nullopt : std::optional(*found);
}

void Coordinator::notify_left(TimePoint now) {
  if (!notify_left_at_ || now < *notify_left_at_) {
    return;
  }
  notify_left_at_.reset();
  RankSet others = all_;
  for (const auto& [rank, uses] : left_uses_) {
    others.remove(RankSet::of(rank));
  }
  std::vector<Rank> ranks = std::exchange(unnotified_, {});
  if (!others.empty()) {
    send(std::move(others), RanksLeft{std::move(ranks)});
  }
}

}  // namespace sirtaki::control
