// Early: connections from processes that knew the epoch before this one did, kept until it knows it, too.
//
// Owned by whoever accepts them; its loop's thread. A Guest has a `hello` that says who came and what for.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace sirtaki::rendezvous {

template <class Guest>
class Early {
 public:
  // Keeps `guest` among at most `most`. Who comes again has given up its first connection, which goes; then the oldest
  // makes room and is returned, because an earlier epoch may have left it behind.
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
  // The oldest first; none is kept any more.
  std::vector<Guest> take() { return std::exchange(guests_, {}); }

 private:
  std::vector<Guest> guests_;
};

}  // namespace sirtaki::rendezvous
