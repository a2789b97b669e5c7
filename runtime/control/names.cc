#include "runtime/control/names.h"

#include <algorithm>

namespace sirtaki::control {
namespace {

// A rank can be at most this many uses ahead of one that recalls: uses complete together, except where a rank only
// sends (a broadcast's root) and runs ahead.
constexpr std::size_t kRecentUses = 64;

}  // namespace

void Names::remember(Entry& entry, const OpMeta& meta) {
  const auto same = [&](const OpMeta& m) { return m.compatible(meta); };
  std::erase_if(entry.agreed, same);
  entry.agreed.push_front(meta);
  if (entry.agreed.size() > kRememberedShapes) {
    entry.agreed.pop_back();
  }
}

Names::Submitted Names::submit(const std::string& name, const OpMeta& meta) {
  Entry& entry = entries_[name];
  Submitted out;
  out.use = entry.next_use++;
  if (auto failed = entry.failed.extract(out.use); !failed.empty()) {
    out.failed = std::move(failed.mapped());
    return out;
  }
  const bool known = entry.id != 0 && std::any_of(entry.agreed.begin(), entry.agreed.end(),
                                                  [&](const OpMeta& m) { return m.compatible(meta); });
  const bool recalled = entry.recalled.erase(out.use) != 0;
  Live& live = entry.live[out.use];
  live.meta = meta;
  if (known && !recalled) {
    live.started = true;
    out.start_id = entry.id;
  } else {
    out.announce = Announce{name, out.use, meta};
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
    return Announce{name->second, recall.use, live->second.meta};
  }
  if (const auto over = entry.recent.find(recall.use); over != entry.recent.end()) {
    return Announce{name->second, recall.use, over->second};
  }
  if (recall.use >= entry.next_use) {
    entry.recalled.insert(recall.use);
  }
  return std::nullopt;
}

bool Names::on_cancelled(const OpCancelled& cancelled) {
  Entry& entry = entries_[cancelled.name];
  entry.recalled.erase(cancelled.use);
  if (entry.live.contains(cancelled.use)) {
    return true;
  }
  if (cancelled.use < entry.next_use) {
    return false;  // over on this rank, which could end it alone (a broadcast's root)
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
  it->second.recent.emplace(use, std::move(live->second.meta));
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
