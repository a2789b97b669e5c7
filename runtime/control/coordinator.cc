#include "runtime/control/coordinator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/control/scope.h"

namespace sirtaki::control {
namespace {

constexpr std::size_t kRememberedCancels = 64;  // cancelled uses of one name

// Adds ranks to the group with the same value.
template <class T, class Same>
void join(std::vector<Group<T>>& groups, const RankSet& ranks, const T& value, Same same) {
  if (ranks.empty()) {
    return;
  }
  const auto known = std::ranges::find_if(groups, [&](const Group<T>& g) { return same(g.value, value); });
  if (known != groups.end()) {
    known->ranks.add(ranks);
  } else {
    groups.push_back({value, ranks});
  }
}

}  // namespace

Coordinator::Coordinator(int size, StallOptions options, Duration last_word_wait, CoordinatorOptions more)
    : all_(RankSet::range(0, size)), last_word_wait_(last_word_wait), options_(more), stall_(size, options) {}

Coordinator::Actions Coordinator::take_actions() {
  return std::exchange(actions_, {});
}

void Coordinator::send(RankSet to, CoordinatorMessage message) {
  actions_.sends.push_back({std::move(to), std::move(message)});
}

void Coordinator::on_received(const RankSet& from, const MemberMessage& message, TimePoint now) {
  if (const auto* report = std::get_if<Waiting>(&message)) {
    stall_.on_report(from, *report, now);
    for (const WaitEntry& entry : report->entries) {
      if (entry.kind == WaitKind::kStreamStep) {
        count_joined_step(entry);
      }
    }
    apply(stall_.inspect(now));
    return;
  }
  if (const auto* last_word = std::get_if<Leaving>(&message)) {
    on_last_word(from, *last_word, now);
    return;
  }
  std::visit(
      [&](const auto& m) {
        using T = std::decay_t<decltype(m)>;
        if constexpr (!std::is_same_v<T, Waiting> && !std::is_same_v<T, Leaving> && !std::is_same_v<T, TraceChunk> &&
                      !std::is_same_v<T, TraceRequest> && !std::is_same_v<T, JobBroken>) {
          on(from, m);
        }
      },
      message);
}

// ---- operations by name ----

Coordinator::Name& Coordinator::record_of(const std::string& name) {
  const auto [it, added] = names_.try_emplace(name);
  if (added) {
    it->second.members = scope_of(name, all_.size());
    oldest_.push_back(name);
    ask_unused();
  }
  return it->second;
}

void Coordinator::on(const RankSet& from, const Announce& message) {
  Name& name = record_of(message.name);
  if (name.cancelled.contains(message.use)) {
    return;  // sent before the cancellation reached that rank
  }
  Use& use = name.uses[message.use];
  join(use.metas, from.without(use.announced), message.meta,
       [](const OpMeta& a, const OpMeta& b) { return a.compatible(b); });
  use.announced.add(from);
  count_left(message.name, message.use);
  decide(message.name, message.use);
  recall_missing(message.name);
}

void Coordinator::decide(const std::string& name, std::uint64_t use_number) {
  Name& record = record_of(name);
  const auto it = record.uses.find(use_number);
  if (it == record.uses.end()) {
    return;
  }
  const RankSet absent = absent_joined(name, record, use_number);
  if (!it->second.announced.contains(record.members.without(absent))) {
    return;
  }
  Status status = describe_mismatch(name, it->second.metas);
  const OpMeta meta = it->second.metas.front().value;
  if (status.ok() && !absent.empty()) {
    status = refusal_of(name, meta, absent);
  }
  if (!status.ok()) {
    cancel(name, use_number, status, true);
    return;
  }
  if (record.id == 0) {
    record.id = next_id_++;
  }
  record.uses.erase(it);
  if (!absent.empty()) {
    for (const Rank rank : absent.ranks()) {
      joined_.at(rank).uses[name] = use_number + 1;
    }
    send(absent, StandInOp{name, use_number, meta});
  }
  send(record.members, Agreed{name, use_number, record.id});
}

// Ranks that know the name may start a use without a message; after an announcement of one rank, the others must
// announce it, too.
void Coordinator::recall_missing(const std::string& name) {
  const auto record = names_.find(name);
  if (record == names_.end() || record->second.id == 0) {
    return;
  }
  for (auto& [number, use] : record->second.uses) {
    const RankSet absent = absent_joined(name, record->second, number);
    RankSet missing = record->second.members.without(use.announced).without(use.recalled).without(absent);
    if (!missing.empty()) {
      use.recalled.add(missing);
      send(std::move(missing), Recall{record->second.id, number});
    }
  }
}

void Coordinator::cancel(const std::string& name, std::uint64_t use, const Status& status, bool everywhere) {
  Name& record = record_of(name);
  record.uses.erase(use);
  if (!record.cancelled.insert(use).second) {
    return;
  }
  if (record.cancelled.size() > kRememberedCancels) {
    record.cancelled.erase(record.cancelled.begin());
  }
  // A joined rank takes no part in a use that it has not submitted by now; it continues with the next one.
  const RankSet joined = record.members.common(joined_ranks());
  for (const Rank rank : joined.ranks()) {
    std::uint64_t& uses = joined_.at(rank).uses[name];
    uses = std::max(uses, use + 1);
  }
  send(record.members.without(joined), OpCancelled{name, use, everywhere, status});
  if (!joined.empty()) {
    send(joined, OpCancelled{name, use, false, status});
  }
}

void Coordinator::on(const RankSet& /*from*/, const OpFailed& message) {
  cancel(message.name, message.use, message.status, true);
}

// ---- streams ----

void Coordinator::on(const RankSet& from, const StreamOpen& message) {
  Opening& opening = openings_[message.name];
  opening.members = scope_of(message.name, all_.size());
  // The latest request of a rank counts.
  for (auto& group : opening.specs) {
    group.ranks.remove(from);
  }
  std::erase_if(opening.specs, [](const auto& group) { return group.ranks.empty(); });
  join(opening.specs, from, message, std::equal_to<>());
  opening.opened.add(from);
  if (const auto left = left_of(opening.members)) {
    refuse_opening(message.name, left_status(*left, "stream '" + message.name + "'"));
    return;
  }
  refuse_opening_of_joined(message.name);
  decide_opening(message.name);
}

void Coordinator::decide_opening(const std::string& name) {
  const auto it = openings_.find(name);
  if (it == openings_.end() || !it->second.opened.contains(it->second.members)) {
    return;
  }
  const RankSet members = it->second.members;
  Status status = describe_mismatch(name, std::move(it->second.specs));
  while (streams_.contains(next_stream_) || next_stream_ == 0) {
    ++next_stream_;
  }
  if (!status.ok()) {
    refuse_opening(name, std::move(status));
    return;
  }
  openings_.erase(it);
  const StreamId id(next_stream_++);
  Stream& stream = streams_[id.value];
  stream.name = name;
  stream.members = members;
  send(members, StreamAgreed{name, id});
}

void Coordinator::refuse_opening(const std::string& name, Status status) {
  send(scope_of(name, all_.size()), StreamRefused{name, std::move(status)});
  openings_.erase(name);
}

void Coordinator::abort_stream(const StreamAbort& cause, bool everywhere) {
  const auto it = streams_.find(cause.stream.value);
  if (it == streams_.end() || it->second.attempt != cause.attempt) {
    return;  // about a step that is void already
  }
  ++it->second.attempt;
  send(it->second.members, StreamAborted{cause.stream, it->second.attempt, cause.step, everywhere, cause.status});
}

void Coordinator::on(const RankSet& /*from*/, const StreamAbort& message) {
  abort_stream(message, true);
}

void Coordinator::on(const RankSet& /*from*/, const StreamUnused& message) {
  const auto it = streams_.find(message.stream.value);
  // A request for a void step is ignored: the rank repeats it in the next attempt, in which the others may be further.
  if (it != streams_.end() && it->second.attempt == message.attempt && !it->second.flags) {
    it->second.flags = true;
    send(it->second.members, StreamFlags{message.stream, message.attempt, message.step});
  }
}

void Coordinator::on(const RankSet& from, const StreamClose& message) {
  const auto it = streams_.find(message.stream.value);
  if (it == streams_.end()) {
    return;
  }
  it->second.closed.add(from);
  if (it->second.closed.contains(it->second.members)) {
    streams_.erase(it);
  }
}

// ---- lives and stalls ----

// The members learn of a lost rank from the rendezvous and end everything themselves.
void Coordinator::on_lost(Rank rank) {
  stall_.on_gone(rank);
}

void Coordinator::on_tick(TimePoint now) {
  apply(stall_.inspect(now));
  give_up_last_words(now);
  notify_left(now);
}

std::optional<TimePoint> Coordinator::next_tick() const {
  std::optional<TimePoint> next = stall_.next_tick();
  if (notify_left_at_) {
    next = std::min(next.value_or(*notify_left_at_), *notify_left_at_);
  }
  for (const auto& [rank, due] : awaiting_last_word_) {
    next = next ? std::min(*next, due) : due;
  }
  return next;
}

void Coordinator::apply(const StallInspector::Findings& findings) {
  for (const auto& verdict : findings.verdicts) {
    const std::string& name = verdict.entry.name;
    switch (verdict.entry.kind) {
      case WaitKind::kOp:
        // A rank that has not submitted it may never do so; only a mismatch is known to be everywhere.
        cancel(name, verdict.entry.use, verdict.status, verdict.status.code() == Code::kMismatch);
        break;
      case WaitKind::kStreamOpen:
        // Once agreed, it exists on some ranks while others still measure the link.
        if (openings_.contains(name)) {
          refuse_opening(name, verdict.status);
        }
        break;
      case WaitKind::kStreamStep:
        for (const auto& [id, stream] : streams_) {
          if (stream.name == name) {
            abort_stream({StreamId(id), static_cast<std::uint32_t>(verdict.entry.use >> 32),
                          verdict.entry.use & 0xffffffffU, verdict.status},
                         false);
          }
        }
        break;
    }
  }
  for (const std::string& warning : findings.warnings) {
    actions_.warnings.push_back(warning);
  }
  if (findings.query) {
    send_all(Query{});
  }
  if (!findings.give_way.empty()) {
    send(findings.give_way, GiveWay{});
  }
}

}  // namespace sirtaki::control
