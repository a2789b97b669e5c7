#include "runtime/control/names.h"

#include <algorithm>

namespace sirtaki::control {
namespace {

// A rank can be at most this many uses ahead of one that recalls: uses complete together, except where a rank only
// sends (a broadcast's root) and runs ahead.
constexpr std::size_t kRecentUses = 64;

}  // namespace

Announce Names::announce(const std::string& name, const Entry& entry, std::uint64_t use, const OpMeta& meta) const {
  Announce message;
  message.name = name;
  message.use = use;
  message.id = entry.id;
  message.cancels_seen = cancels_seen_;
  message.meta = meta;
  return message;
}

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
  const bool known = entry.id != 0 && std::any_of(entry.agreed.begin(), entry.agreed.end(),
                                                  [&](const OpMeta& m) { return m.compatible(meta); });
  const bool recalled = entry.recalled.erase(out.use) != 0;
  Live& live = entry.live[out.use];
  live.meta = meta;
  if (known && !recalled) {
    live.started = true;
    out.start_id = entry.id;
  } else {
    out.announce = announce(name, entry, out.use, meta);
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
    return std::nullopt;  // cancelled meanwhile; the cancellation reaches everybody
  }
  Entry& entry = entries_[name->second];
  if (const auto live = entry.live.find(recall.use); live != entry.live.end()) {
    return announce(name->second, entry, recall.use, live->second.meta);
  }
  if (const auto over = entry.recent.find(recall.use); over != entry.recent.end()) {
    return announce(name->second, entry, recall.use, over->second);
  }
  if (recall.use >= entry.next_use) {
    entry.recalled.insert(recall.use);
  }
  return std::nullopt;
}

std::vector<std::uint64_t> Names::on_cancelled(const OpCancelled& cancelled) {
  ++cancels_seen_;
  std::vector<std::uint64_t> uses;
  const auto it = entries_.find(cancelled.name);
  if (it == entries_.end()) {
    return uses;
  }
  for (const auto& [use, live] : it->second.live) {
    uses.push_back(use);
  }
  by_id_.erase(it->second.id);
  entries_.erase(it);
  return uses;
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

const OpMeta* Names::meta_of(const std::string& name, std::uint64_t use) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    return nullptr;
  }
  const auto live = it->second.live.find(use);
  return live == it->second.live.end() ? nullptr : &live->second.meta;
}

}  // namespace sirtaki::control
