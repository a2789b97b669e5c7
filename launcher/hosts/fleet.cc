#include "launcher/hosts/fleet.h"

#include <algorithm>

namespace sirtaki::launcher {

Fleet::Entry* Fleet::find(const std::string& host) {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.host.name == host; });
  return found == entries_.end() ? nullptr : &*found;
}

void Fleet::offer(const std::vector<Host>& hosts) {
  for (const Host& host : hosts) {
    if (find(host.name) == nullptr) {
      entries_.push_back({host});
    }
  }
}

void Fleet::set_ready(const std::string& host, bool ready) {
  if (Entry* entry = find(host)) {
    entry->ready = ready;
  }
}

void Fleet::close_slot(const std::string& host) {
  if (Entry* entry = find(host)) {
    ++entry->closed;
  }
}

Fleet::Moves Fleet::moves(const std::vector<std::string>& seats) const {
  Moves moves;
  auto vacant = std::ranges::find(seats, "");
  for (const Entry& entry : entries_) {
    auto room = entry.ready ? entry.host.slots - entry.closed - std::ranges::count(seats, entry.host.name) : 0;
    for (; room > 0 && vacant != seats.end(); --room) {
      moves.starts.emplace_back(static_cast<Rank>(vacant - seats.begin()), entry.host.name);
      vacant = std::find(vacant + 1, seats.end(), "");
    }
  }
  return moves;
}

}  // namespace sirtaki::launcher
