// Ranks without more data. Part of Coordinator.
#include <algorithm>
#include <utility>

#include "runtime/control/coordinator.h"

namespace sirtaki::control {
namespace {

Status joined_status(Rank rank, const std::string& what) {
  return {
      Code::kMismatch,
      what + " needs all ranks, but rank " + std::to_string(rank) +
          " has no more data and waits in join(). While a rank has joined, only optimizers' gradients are combined: "
          "call this after join(), or on all ranks before one of them joins",
      {rank, what}};
}

}  // namespace

void Coordinator::on(const RankSet& from, const Joined& message) {
  for (const Rank rank : from.ranks()) {
    JoinedRank& joined = joined_[rank];
    for (const Leaving::Count& count : message.counts) {
      joined.uses[count.name] = count.uses;
    }
    for (const StreamPlace& place : message.places) {
      joined.places[place.stream.value] = place;
    }
  }
  stall_.set_joined(from, true);
  if (static_cast<int>(joined_.size()) == all_.size()) {
    end_join(from.ranks().back());
    return;
  }
  send(from, StandIn{});
  std::vector<std::pair<std::string, std::uint64_t>> pending;
  for (const auto& [name, record] : names_) {
    for (const auto& [number, use] : record.uses) {
      pending.emplace_back(name, number);
    }
  }
  for (const auto& [name, number] : pending) {
    count_joined(name, number);
  }
  std::vector<std::string> openings;
  for (const auto& [name, opening] : openings_) {
    openings.push_back(name);
  }
  for (const std::string& name : openings) {
    refuse_opening_of_joined(name);
  }
}

RankSet Coordinator::joined_ranks() const {
  RankSet ranks;
  for (const auto& [rank, joined] : joined_) {
    ranks.add(rank);
  }
  return ranks;
}

// Somebody waits for this use. A rank that has joined without submitting it never will in time.
void Coordinator::count_joined(const std::string& name, std::uint64_t use) {
  if (joined_.empty()) {
    return;
  }
  const RankSet& members = record_of(name).members;
  for (const auto& [rank, joined] : joined_) {
    if (!members.contains(rank)) {
      continue;
    }
    const auto count = joined.uses.find(name);
    if (count == joined.uses.end() || count->second <= use) {
      cancel(name, use, joined_status(rank, "'" + name + "'"), true);
      return;
    }
  }
}

// Nor can it stand in where it has closed the stream.
void Coordinator::count_joined_step(const WaitEntry& entry) {
  for (const auto& [id, stream] : streams_) {
    const RankSet gone = stream.closed.common(joined_ranks());
    if (stream.name == entry.name && !gone.empty()) {
      const Status status(
          Code::kMismatch,
          "rank " + std::to_string(gone.front()) + " has closed stream '" + entry.name +
              "' and waits in join(), so the steps of this stream can never complete. Likely cause: its "
              "optimizer was deleted; keep it until join() has returned",
          {gone.front(), entry.name});
      abort_stream({StreamId(id), static_cast<std::uint32_t>(entry.use >> 32), entry.use & 0xffffffffU, status}, true);
      return;
    }
  }
}

void Coordinator::refuse_opening_of_joined(const std::string& name) {
  const auto it = openings_.find(name);
  for (const auto& [rank, joined] : joined_) {
    if (it->second.members.contains(rank) && !it->second.opened.contains(rank)) {
      refuse_opening(name, joined_status(rank, "opening stream '" + name + "'"));
      return;
    }
  }
}

// The ranks that stood in have begun a step that the last rank never begins. That rank is the furthest in every stream:
// no step ends without it.
void Coordinator::end_join(Rank last) {
  AllJoined message;
  message.last = last;
  for (auto& [id, stream] : streams_) {
    StreamPlace reset{StreamId(id), stream.attempt + 1, 0};
    for (const auto& [rank, joined] : joined_) {
      const auto place = joined.places.find(id);
      if (place != joined.places.end() && place->second.attempt == stream.attempt) {
        reset.step = std::max(reset.step, place->second.step);
      }
    }
    ++stream.attempt;
    message.resets.push_back(reset);
  }
  stall_.set_joined(joined_ranks(), false);
  joined_.clear();
  send_all(std::move(message));
}

}  // namespace sirtaki::control
