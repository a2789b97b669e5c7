// Fleet: the hosts of an elastic job that grows, and which of its places are filled or emptied. Pure.
//
// A place belongs to the job, and has a number: the slot of the coordinator server. It has a process on a host, or is
// vacant and may be filled on any host with room. A host is used once its agent is ready.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/hosts/hosts.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

class Fleet {
 public:
  struct Seat {
    std::string host;        // "": the place is vacant
    bool has_state = false;  // its rank is a member with the state of the job
    bool given_up = false;   // the other ranks wait for no process here, and none may come
  };

  // Takes the hosts that the job may use from now on, each once. Closed slots of a host that was gone, or has more
  // slots than before, are open again.
  void offer(const std::vector<Host>& hosts);
  // Drops all that is known of a host, unless it is offered or refused; returns whether it was dropped. Call it when
  // the host has no rank and no agent.
  bool forget(const std::string& host, TimePoint now);
  // Notes that the agent of a host is asked; set_ready() follows.
  void set_pending(const std::string& host);
  // Notes whether the agent of a host has answered and passed all checks.
  void set_ready(const std::string& host, bool ready);
  // Leaves the host out for a while, and returns how long: the first pause, doubled each time, and longer by up to a
  // quarter with `jitter` between 0 and 1; at most the longest. A host that has been used for long begins anew; `used`
  // is the time that it has had a rank.
  Duration rest(const std::string& host, Duration first, Duration longest, TimePoint now, Duration used,
                double jitter = 0);
  // Refuses the host until then, also if it is gone meanwhile, and gives the reason in refusal(). TimePoint::max(): for
  // good, and no process is started there any more.
  void bar(const std::string& host, TimePoint until, const std::string& why);
  // Returns why the host is refused; empty: it may come.
  std::string refusal(const std::string& host, TimePoint now) const;
  // Closes a slot of the host, in which no process is started any more.
  void close_slot(const std::string& host, const std::vector<Seat>& seats);

  // Returns the hosts whose agents should be asked, because there are vacant places that others do not fill.
  std::vector<Host> absent(const std::vector<Seat>& seats, TimePoint now) const;
  // Returns the vacant places that can be filled now, with their hosts.
  std::vector<std::pair<Rank, std::string>> starts(const std::vector<Seat>& seats, TimePoint now) const;
  // Returns the ranks whose hosts have no slots for them any more. One rank with the state of the job stays until
  // another one on a host with slots has it.
  std::vector<Rank> leaves(const std::vector<Seat>& seats) const;
  // Returns the number of places that the hosts can fill, some of them when they are ready and have rested.
  long room(const std::vector<Seat>& seats) const;
  // Returns whether some agent has yet to answer for the first time.
  bool pending() const;
  // Returns the number of slots of all hosts that are ready.
  int ready_slots() const;
  // Returns whether the host is among those of the last offer().
  bool is_offered(const std::string& host) const { return slots(host) > 0; }
  // Returns the number of slots with which the host is offered at present.
  int slots(const std::string& host) const;
  // Returns for example "2 hosts with 6 slots (a:2, b:4)".
  std::string describe() const;

 private:
  struct Entry {
    Host host;  // no slots: it is not offered any more
    bool ready = false;
    bool pending = false;
    int closed = 0;  // slots in which no process is started any more
    int rests = 0;
    TimePoint rests_until = {};
    TimePoint barred_until = {};
    std::string barred_why;
  };
  static long room(const Entry& entry, const std::vector<Seat>& seats);

  std::vector<Entry> entries_;  // in the order in which the hosts were first named
};

}  // namespace sirtaki::launcher
