// Fleet: the hosts of an elastic job that grows, and which of its places are filled or emptied. Pure.
//
// A place of the job (slot) has a process on a host, or is vacant and may be filled on any host with room.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/hosts/hosts.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

class Fleet {
 public:
  struct Moves {
    std::vector<std::pair<Rank, std::string>> starts;  // vacant places and the hosts on which they are filled
  };

  // Takes the hosts that the job may use from now on, each once.
  void offer(const std::vector<Host>& hosts);
  // The agent of a host has answered and passed all checks, or is gone.
  void set_ready(const std::string& host, bool ready);
  // No process is started any more in one of the host's slots.
  void close_slot(const std::string& host);

  // Returns what has to change. `seats` holds the host of each place, "" for a vacant one.
  Moves moves(const std::vector<std::string>& seats) const;

 private:
  struct Entry {
    Host host;
    bool ready = false;
    int closed = 0;  // slots in which no process is started any more
  };
  Entry* find(const std::string& host);

  std::vector<Entry> entries_;  // in the order in which the hosts were named
};

}  // namespace sirtaki::launcher
