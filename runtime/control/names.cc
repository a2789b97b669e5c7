#include "runtime/control/names.h"

#include <algorithm>
#include <utility>

#include "runtime/control/scope.h"

namespace sirtaki::control {
namespace {

// Limit of the uses by which a rank can be ahead of one that recalls. Uses complete together, unless a rank only sends
// (the root of a broadcast) and runs ahead.
constexpr std::size_t kRecentUses = 64;

}  // namespace

void Names::remember(Entry& entry, const OpMeta& meta) {
  const auto same = [&](const OpMeta& m) { return m.compatible(meta); };
  const auto other_root = [&](const OpMeta& m) { return m.kind == OpKind::kBroadcast && m.root != meta.root; };
  entry.roots_vary = entry.roots_vary || (meta.kind == OpKind::kBroadcast &&
                                          std::any_of(entry.agreed.begin(), entry.agreed.end(), other_root));
  std::erase_if(entry.agreed, same);
  entry.agreed.push_front(meta);
  if (entry.agreed.size() > kRememberedShapes) {
    entry.agreed.pop_back();
  }
}

// Each use is announced once, although a rank that is recalled and learns of joined ranks is asked twice.
std::optional<Announce> Names::announcement(const std::string& name, std::uint64_t use, Live& live) {
  if (std::exchange(live.announced, true)) {
    return std::nullopt;
  }
  return Announce{name, use, live.meta};
}

Names::Submitted Names::submit(const std::string& name, const OpMeta& meta) {
  Entry& entry = entries_[name];
  Submitted out;
  out.use = entry.next_use++;
  if (auto failed = entry.failed.extract(out.use); !failed.empty()) {
    out.failed = std::move(failed.mapped());
    return out;
  }
  // A root that starts without an agreement ends before it could learn that another rank means to be the root.
  const bool roots_agree = meta.kind != OpKind::kBroadcast || !entry.roots_vary;
  const bool known =
      entry.id != 0 && roots_agree &&
      std::any_of(entry.agreed.begin(), entry.agreed.end(), [&](const OpMeta& m) { return m.compatible(meta); });
  const bool recalled = entry.recalled.erase(out.use) != 0;
  Live& live = entry.live[out.use];
  live.meta = meta;
  if (known && !recalled && !announces_all_) {
    live.started = true;
    entry.touched = true;
    out.start_id = entry.id;
  } else {
    out.announce = announcement(name, out.use, live);
  }
  return out;
}

std::optional<Names::Start> Names::on_agreed(const Agreed& agreed) {
  Entry& entry = entries_[agreed.name];
  if (entry.id != agreed.id) {
    entry.id = agreed.id;
    by_id_[agreed.id] = agreed.name;
  }
  entry.recalled.erase(agreed.use);
  const auto it = entry.live.find(agreed.use);
  if (it == entry.live.end()) {
    return std::nullopt;
  }
  remember(entry, it->second.meta);
  if (it->second.started) {
    return std::nullopt;
  }
  it->second.started = true;
  return Start{agreed.use, agreed.id};
}

std::optional<Announce> Names::on_recall(const Recall& recall) {
  const auto name = by_id_.find(recall.id);
  if (name == by_id_.end()) {
    return std::nullopt;
  }
  Entry& entry = entries_[name->second];
  if (const auto live = entry.live.find(recall.use); live != entry.live.end()) {
    return announcement(name->second, recall.use, live->second);
  }
  if (const auto over = entry.recent.find(recall.use); over != entry.recent.end()) {
    return announcement(name->second, recall.use, over->second);
  }
  if (recall.use >= entry.next_use) {
    entry.recalled.insert(recall.use);
  }
  return std::nullopt;
}

std::vector<Announce> Names::on_some_joined(const SomeJoined& joined, int size) {
  announces_all_ = true;
  std::unordered_map<std::string, std::uint64_t> counts;
  for (const Leaving::Count& count : joined.counts) {
    counts[count.name] = count.uses;
  }
  std::vector<Announce> all;
  for (auto& [name, entry] : entries_) {
    const RankSet members = scope_of(name, size);
    if (std::ranges::none_of(joined.ranks, [&](Rank rank) { return members.contains(rank); })) {
      continue;
    }
    const auto count = counts.find(name);
    const std::uint64_t first = count == counts.end() ? 0 : count->second;
    for (auto* uses : {&entry.recent, &entry.live}) {
      for (auto use = uses->lower_bound(first); use != uses->end(); ++use) {
        if (auto announce = announcement(name, use->first, use->second)) {
          all.push_back(std::move(*announce));
        }
      }
    }
  }
  return all;
}

std::vector<Announce> Names::on_joining() {
  std::vector<Announce> all;
  for (auto& [name, entry] : entries_) {
    for (auto& [use, live] : entry.live) {
      if (auto announce = announcement(name, use, live)) {
        all.push_back(std::move(*announce));
      }
    }
  }
  return all;
}

Unused Names::on_ask_unused(const AskUnused& ask) {
  Unused unused;
  for (const std::string& name : ask.names) {
    Entry& entry = entries_[name];
    const bool used = std::exchange(entry.touched, false);
    if (!used && entry.live.empty() && entry.failed.empty() && entry.recalled.empty()) {
      entry.blocked = true;
      unused.counts.push_back({name, entry.next_use});
    }
  }
  return unused;
}

void Names::on_forgotten(const Forgotten& message) {
  for (const std::string& name : message.names) {
    if (const auto entry = entries_.find(name); entry != entries_.end()) {
      by_id_.erase(entry->second.id);
      entries_.erase(entry);
    }
  }
  for (const std::string& name : message.kept) {
    if (const auto entry = entries_.find(name); entry != entries_.end()) {
      entry->second.blocked = false;
    }
  }
}

bool Names::is_blocked(const std::string& name) const {
  const auto entry = entries_.find(name);
  return entry != entries_.end() && entry->second.blocked;
}

bool Names::any_blocked() const {
  return std::ranges::any_of(entries_, [](const auto& named) { return named.second.blocked; });
}

bool Names::contribute_zeros(const StandInOp& use) {
  Entry& entry = entries_[use.name];
  if (use.use < entry.next_use) {
    return false;
  }
  entry.next_use = use.use + 1;
  entry.recalled.erase(use.use);
  entry.live[use.use] = {use.meta, false, true};
  return true;
}

bool Names::on_cancelled(const OpCancelled& cancelled) {
  Entry& entry = entries_[cancelled.name];
  entry.recalled.erase(cancelled.use);
  if (entry.live.contains(cancelled.use)) {
    return true;
  }
  if (cancelled.use < entry.next_use) {
    return false;  // completed on this rank, which needed no other rank (the root of a broadcast)
  }
  if (cancelled.everywhere) {
    entry.failed[cancelled.use] = cancelled.status;
  } else {
    entry.next_use = cancelled.use + 1;
  }
  return false;
}

void Names::finished(const std::string& name, std::uint64_t use) {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    return;
  }
  const auto live = it->second.live.find(use);
  if (live == it->second.live.end()) {
    return;
  }
  it->second.recent.emplace(use, std::move(live->second));
  it->second.live.erase(live);
  if (it->second.recent.size() > kRecentUses) {
    it->second.recent.erase(it->second.recent.begin());
  }
}

Leaving Names::leaving() const {
  Leaving message;
  for (const auto& [name, entry] : entries_) {
    message.counts.push_back({name, entry.live.empty() ? entry.next_use : entry.live.begin()->first});
  }
  std::ranges::sort(message.counts, {}, &Leaving::Count::name);
  return message;
}

std::vector<Leaving::Count> Names::submitted() const {
  std::vector<Leaving::Count> counts;
  for (const auto& [name, entry] : entries_) {
    counts.push_back({name, entry.next_use});
  }
  std::ranges::sort(counts, {}, &Leaving::Count::name);
  return counts;
}

const OpMeta* Names::meta_of(const std::string& name, std::uint64_t use) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    return nullptr;
  }
  const auto live = it->second.live.find(use);
  return live == it->second.live.end() ? nullptr : &live->second.meta;
}

}  // namespace sirtaki::control
