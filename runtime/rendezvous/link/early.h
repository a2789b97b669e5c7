// Early: keeps connections for an epoch that this process does not know yet, until it knows the epoch.
//
// A Guest is such a connection, with a `hello` that identifies the peer and its purpose. Owned by: the acceptor of the
// connections; used on its loop thread.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace sirtaki::rendezvous {

template <class Guest>
class Early {
 public:
  // Keeps `guest`, one of at most `most`. Drops an earlier guest with the same hello, which has given up that
  // connection. If there is no room, removes and returns the oldest guest, which an earlier epoch may have left behind.
  std::optional<Guest> keep(Guest guest, std::size_t most) {
    std::erase_if(guests_, [&](const Guest& known) { return known.hello == guest.hello; });
    std::optional<Guest> evicted;
    if (!guests_.empty() && guests_.size() >= most) {
      evicted = std::move(guests_.front());
      guests_.erase(guests_.begin());
    }
    guests_.push_back(std::move(guest));
    return evicted;
  }
  // Removes and returns all guests, the oldest first.
  std::vector<Guest> take() { return std::exchange(guests_, {}); }

 private:
  std::vector<Guest> guests_;
};

}  // namespace sirtaki::rendezvous
