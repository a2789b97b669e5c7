// Ranks without more data. Part of Coordinator.
#include <algorithm>
#include <utility>

#include "runtime/control/coordinator.h"
#include "runtime/control/scope.h"

namespace sirtaki::control {
namespace {

Status joined_status(Rank rank, const std::string& what, const std::string& why) {
  return {Code::kMismatch,
          what + ": " + why + ", but rank " + std::to_string(rank) +
              " has no more data and waits in join(): call this after join(), or on all ranks before one of them joins",
          {rank, what}};
}

}  // namespace

void Coordinator::on(const RankSet& from, const Joined& message) {
  if (!left_.empty()) {
    return;  // not all ranks can join any more; this one is about to receive the reason
  }
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
  const bool all = static_cast<int>(joined_.size()) == all_.size();
  if (!all) {
    send(from, StandIn{});
    send(all_.without(from), SomeJoined{from.ranks(), message.counts});
  }
  std::vector<std::pair<std::string, std::uint64_t>> pending;
  for (const auto& [name, record] : names_) {
    for (const auto& [number, use] : record.uses) {
      pending.emplace_back(name, number);
    }
  }
  for (const auto& [name, number] : pending) {
    decide(name, number);
  }
  if (all) {
    end_join(from.ranks().back());
    return;
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

// Returns the joined ranks that have not submitted this use.
RankSet Coordinator::absent_joined(const std::string& name, const Name& record, std::uint64_t use) const {
  RankSet ranks;
  const auto pending = record.uses.find(use);
  for (const auto& [rank, joined] : joined_) {
    const auto count = joined.uses.find(name);
    const bool submitted = (count != joined.uses.end() && count->second > use) ||
                           (pending != record.uses.end() && pending->second.announced.contains(rank));
    if (!submitted && record.members.contains(rank)) {
      ranks.add(rank);
    }
  }
  return ranks;
}

// Zeros replace neither the data of a root nor an operand of other operators than sums.
Status Coordinator::refusal_of(const std::string& name, const OpMeta& meta, const RankSet& absent) const {
  const std::string what = "'" + name + "' (" + meta.to_string() + ")";
  if (meta.kind == OpKind::kBarrier) {
    return {};
  }
  if (meta.kind == OpKind::kBroadcast && absent.contains(meta.root)) {
    return joined_status(meta.root, what, "the root of a broadcast has what the others are to get");
  }
  if (meta.kind != OpKind::kAllreduce && options_.joined_only_reduce) {
    return joined_status(absent.front(), what, "under --horovod only allreduce and barrier go on without a rank");
  }
  const bool reduces = meta.kind == OpKind::kAllreduce || meta.kind == OpKind::kReduceScatter;
  const bool zeros_count =
      meta.reduce_op == ReduceOp::kMin || meta.reduce_op == ReduceOp::kMax || meta.reduce_op == ReduceOp::kProduct;
  if (reduces && zeros_count) {
    return joined_status(absent.front(), what, "only sums, averages and Adasum go on without a rank's data");
  }
  if (meta.device != DeviceType::kCpu) {
    return joined_status(absent.front(), what, "a tensor on a GPU needs all ranks, or a copy of it on the CPU");
  }
  return {};
}

// A joined rank cannot contribute to a stream that it has closed.
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
      refuse_opening(name, joined_status(rank, "opening stream '" + name + "'", "it needs all ranks"));
      return;
    }
  }
}

// A root may be ahead by broadcasts that the others never submitted; they continue behind these.
void Coordinator::align_uses() {
  std::unordered_map<std::string, std::uint64_t> most;
  for (const auto& [rank, joined] : joined_) {
    for (const auto& [name, uses] : joined.uses) {
      most[name] = std::max(most[name], uses);
    }
  }
  for (const auto& [name, uses] : most) {
    RankSet behind;
    for (const auto& [rank, joined] : joined_) {
      const auto count = joined.uses.find(name);
      if (count == joined.uses.end() || count->second < uses) {
        behind.add(rank);
      }
    }
    behind = behind.common(scope_of(name, all_.size()));
    if (!behind.empty()) {
      send(std::move(behind), OpCancelled{name, uses - 1, false, Status(Code::kAborted, "all ranks have joined")});
    }
  }
}

// The joined ranks have begun a step that the last rank never begins. The last rank is the furthest in every stream,
// because no step ends without it.
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
  align_uses();
  stall_.set_joined(joined_ranks(), false);
  joined_.clear();
  send_all(std::move(message));
}

}  // namespace sirtaki::control
