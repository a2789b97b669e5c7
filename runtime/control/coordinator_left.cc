// Ranks that leave in order: operations that still complete without them, and operations that never can. Part of
// Coordinator.
#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/control/coordinator.h"

namespace sirtaki::control {
namespace {

// At the end of a job all ranks leave within moments of each other, so few messages notify the others of all of them.
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

// A rank that left in order counts for uses that it completed; other uses can never complete.
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
    // Its notice may arrive much later, after the last rank it relays for has gone, and nothing waits that long.
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

// A rank may end before it sends a message, and a relay that ends may lose the message of another rank.
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
  // Every rank that waits in join() gets an error, and continues on its own.
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
    // Its Leaving message is its answer; the others still have to answer.
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

// Returns the first of these ranks that has left.
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
