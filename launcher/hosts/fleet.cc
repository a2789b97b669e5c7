#include "launcher/hosts/fleet.h"

#include <algorithm>
#include <utility>

#include "launcher/hosts/pauses.h"

namespace sirtaki::launcher {

namespace {

// A host that is used for so long has recovered.
constexpr Duration kLastingUse = std::chrono::minutes(10);

long count_seats(const std::vector<Fleet::Seat>& seats, const std::string& host) {
  return std::ranges::count(seats, host, &Fleet::Seat::host);
}

bool is_free(const Fleet::Seat& seat) {
  return seat.host.empty() && !seat.given_up;
}

template <typename Entries>
auto find_entry(Entries& entries, const std::string& host) -> decltype(&entries.front()) {
  const auto found = std::ranges::find_if(entries, [&](const auto& entry) { return entry.host.name == host; });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

void Fleet::offer(const std::vector<Host>& hosts) {
  for (Entry& entry : entries_) {
    const auto named = std::ranges::find(hosts, entry.host.name, &Host::name);
    const int slots = named == hosts.end() ? 0 : named->slots;
    entry.closed = slots > entry.host.slots ? 0 : entry.closed;
    entry.rests = slots == 0 ? 0 : entry.rests;
    entry.rests_until = slots == 0 ? TimePoint() : entry.rests_until;
    entry.host.slots = slots;
  }
  for (const Host& host : hosts) {
    if (find_entry(entries_, host.name) == nullptr) {
      entries_.emplace_back().host = host;
    }
  }
}

bool Fleet::forget(const std::string& host, TimePoint now) {
  const Entry* entry = find_entry(entries_, host);
  if (entry != nullptr && (entry->host.slots > 0 || now < entry->barred_until)) {
    return false;
  }
  std::erase_if(entries_, [&](const Entry& one) { return one.host.name == host; });
  return true;
}

void Fleet::set_pending(const std::string& host) {
  if (Entry* entry = find_entry(entries_, host)) {
    entry->pending = true;
  }
}

void Fleet::set_ready(const std::string& host, bool ready) {
  if (Entry* entry = find_entry(entries_, host)) {
    entry->ready = ready;
    entry->pending = false;
  }
}

Duration Fleet::rest(const std::string& host, Duration first, Duration longest, TimePoint now, Duration used,
                     double jitter) {
  Entry* entry = find_entry(entries_, host);
  if (entry == nullptr) {
    return first;
  }
  // A host that fails may stop to answer, too: two reasons for one rest.
  const bool rests = now < entry->rests_until;
  if (!rests && used >= kLastingUse) {
    entry->rests = 0;
  }
  const Duration whole = growing_pause(first, longest, rests ? entry->rests - 1 : entry->rests++);
  const auto more = std::chrono::duration_cast<std::chrono::milliseconds>(whole * (jitter / 4));
  const Duration pause = std::min<Duration>(whole + more, std::max(whole, longest));
  entry->rests_until = std::max(entry->rests_until, now + pause);
  return entry->rests_until - now;
}

void Fleet::bar(const std::string& host, TimePoint until, const std::string& why) {
  if (Entry* entry = find_entry(entries_, host)) {
    entry->barred_until = until;
    entry->barred_why = why;
  }
}

std::string Fleet::refusal(const std::string& host, TimePoint now) const {
  const Entry* entry = find_entry(entries_, host);
  return entry != nullptr && now < entry->barred_until ? entry->barred_why : std::string();
}

// The slots that nobody has used are closed, too: the next process would come into one of them instead.
void Fleet::close_slot(const std::string& host, const std::vector<Seat>& seats) {
  if (Entry* entry = find_entry(entries_, host)) {
    const long unused = entry->host.slots - count_seats(seats, host);
    entry->closed = std::max(entry->closed + 1, static_cast<int>(unused));
  }
}

long Fleet::room(const Entry& entry, const std::vector<Seat>& seats) {
  const long slots = entry.barred_until == TimePoint::max() ? 0 : entry.host.slots - entry.closed;
  return std::max(0L, slots - count_seats(seats, entry.host.name));
}

std::vector<Host> Fleet::absent(const std::vector<Seat>& seats, TimePoint now) const {
  auto vacant = std::ranges::count_if(seats, is_free);
  for (const Entry& entry : entries_) {
    const bool rests = now < entry.rests_until;
    vacant -= (entry.ready && !rests) || entry.pending ? room(entry, seats) : 0;
  }
  std::vector<Host> hosts;
  for (const Entry& entry : entries_) {
    const bool usable = !entry.ready && !entry.pending && now >= entry.rests_until && room(entry, seats) > 0;
    if (usable && vacant > 0) {
      hosts.push_back(entry.host);
      vacant -= room(entry, seats);
    }
  }
  return hosts;
}

std::vector<std::pair<Rank, std::string>> Fleet::starts(const std::vector<Seat>& seats, TimePoint now) const {
  std::vector<std::pair<Rank, std::string>> starts;
  auto vacant = std::ranges::find_if(seats, is_free);
  for (const Entry& entry : entries_) {
    long space = entry.ready && now >= entry.rests_until ? room(entry, seats) : 0;
    for (; space > 0 && vacant != seats.end(); --space) {
      starts.emplace_back(static_cast<Rank>(vacant - seats.begin()), entry.host.name);
      vacant = std::find_if(vacant + 1, seats.end(), is_free);
    }
  }
  return starts;
}

std::vector<Rank> Fleet::leaves(const std::vector<Seat>& seats) const {
  std::vector<Rank> leaves;
  bool state_stays = false;
  for (const Entry& entry : entries_) {
    int slots = entry.host.slots;  // for the ranks with the smallest numbers
    for (std::size_t rank = 0; rank < seats.size(); ++rank) {
      if (seats[rank].host == entry.host.name && slots-- <= 0) {
        leaves.push_back(static_cast<Rank>(rank));
      } else if (seats[rank].host == entry.host.name) {
        state_stays = state_stays || seats[rank].has_state;
      }
    }
  }
  std::ranges::sort(leaves);
  const auto has_state = [&](Rank rank) { return seats[static_cast<std::size_t>(rank)].has_state; };
  if (const auto first = std::ranges::find_if(leaves, has_state); !state_stays && first != leaves.end()) {
    leaves.erase(first);
  }
  return leaves;
}

long Fleet::room(const std::vector<Seat>& seats) const {
  long free = 0;
  for (const Entry& entry : entries_) {
    free += room(entry, seats);
  }
  return free;
}

bool Fleet::pending() const {
  return std::ranges::any_of(
      entries_, [](const Entry& entry) { return entry.pending && entry.rests == 0 && entry.host.slots > 0; });
}

int Fleet::ready_slots() const {
  int slots = 0;
  for (const Entry& entry : entries_) {
    slots += entry.ready ? entry.host.slots : 0;
  }
  return slots;
}

int Fleet::slots(const std::string& host) const {
  const Entry* entry = find_entry(entries_, host);
  return entry == nullptr ? 0 : entry->host.slots;
}

std::string Fleet::describe() const {
  int hosts = 0;
  int slots = 0;
  std::string names;
  for (const Entry& entry : entries_) {
    if (entry.host.slots > 0) {
      ++hosts;
      slots += entry.host.slots;
      names += (names.empty() ? " (" : ", ") + entry.host.name + ":" + std::to_string(entry.host.slots);
    }
  }
  return std::to_string(hosts) + (hosts == 1 ? " host with " : " hosts with ") + std::to_string(slots) +
         (slots == 1 ? " slot" : " slots") + names + (names.empty() ? "" : ")");
}

}  // namespace sirtaki::launcher
