// AbstractGroup: collectives that cost time by a formula instead of moving messages, for worlds of many ranks.
//
// An operation begins when all ranks have started it, and all of them end it together: after 2 ceil(log2 P) latencies
// plus 2 (P - 1) / P of its bytes at the link's rate (in the manner of LogGP: Alexandrov et al., 1995); the bytes of
// operations go one after the other. Results are right. One thread; each endpoint on its rank's loop.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/net/collectives/collectives.h"
#include "tests/world/sim_loop.h"

namespace sirtaki::world {

struct AbstractCosts {
  Duration latency = std::chrono::microseconds(100);
  double bytes_per_second = 25e6;
  double bytes_factor = 1;  // weight of each byte, so that tensors of a scenario can be tiny
};

class AbstractGroup : public std::enable_shared_from_this<AbstractGroup> {
 public:
  AbstractGroup(int size, AbstractCosts costs) : size_(size), costs_(costs), gone_(static_cast<std::size_t>(size)) {}

  std::unique_ptr<net::Collectives> endpoint(Rank rank, SimLoop& loop);
  // Ends operations that still need `rank` with kPeerLost on the other ranks.
  void kill(Rank rank);
  std::size_t in_flight(Rank rank) const;
  std::uint64_t operations() const { return operations_; }

 private:
  friend class AbstractCollectives;
  struct Part {
    SimLoop* loop = nullptr;
    net::CollectiveArgs args;
    Done done;
    TimerId end;
  };
  struct Op {
    std::vector<std::unique_ptr<Part>> parts;
    std::vector<bool> started;
    int missing = 0;
  };
  using Ops = std::map<std::uint64_t, Op>;

  void start(Rank rank, SimLoop& loop, net::CollectiveArgs args, Done done);
  void end(Ops::iterator op, Rank rank, const Status& status);
  void end_all_of(Rank rank, const Status& cause);
  void fail_without_the_gone(Ops::iterator op);
  void run(Ops::iterator op);
  Duration transfer_time(std::size_t bytes) const;
  void move_data(const Op& op) const;

  const int size_;
  const AbstractCosts costs_;
  std::vector<bool> gone_;
  bool any_gone_ = false;
  Ops ops_;
  TimePoint link_free_;
  std::uint64_t operations_ = 0;
};

}  // namespace sirtaki::world
