// Connections: the communicators of a rank, one for each set of ranks that launch operations together.
//
// Owner: NcclCollectives. Thread: loop, destructor included.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/net/device/launch_set.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::net::nccl {

class Connections {
 public:
  // The place of this rank in a set.
  struct Place {
    Rank rank = 0;
    int size = 1;
  };

  // `make` creates a communicator for options with name, rank and size of a set.
  using Make = std::function<std::unique_ptr<Communicator>(const CommunicatorOptions&, IdExchange&)>;
  Connections(Loop& loop, CommunicatorOptions options, Make make)
      : loop_(loop), options_(std::move(options)), make_(std::move(make)) {}

  // Adds a set, not connected. `name` is that of its communicator; without `ids` it gets none. `ids` must outlive this.
  void add(LaunchSet set, const std::string& name, const Place& place, IdExchange* ids);
  bool has(LaunchSet set) const { return members_.contains(set); }
  const Place& place(LaunchSet set) const { return members_.at(set).place; }
  // Returns the communicator of a set; null if this rank is alone in it.
  Communicator* of(LaunchSet set) const { return members_.at(set).communicator.get(); }

  // Returns ok if operations of the set may start, else the reason.
  const Status& closed(LaunchSet set) const { return members_.at(set).closed; }
  // Returns whether the set is shut.
  bool shut(LaunchSet set) const { return members_.at(set).shut; }
  // Without effect once the set is shut.
  void open(LaunchSet set);
  // Connects the communicators of these sets, one after the other, so that all ranks make them in the same order; the
  // later ones are left out after an error. Calls `done` exactly once, later, unless abort() comes before.
  void connect(std::vector<LaunchSet> sets, Done done);
  // Closes a set with `cause` for good; ends its connection if that is being made. Operations on the device go on, but
  // check() does not ask its communicator any more. The first cause is kept.
  void shut(LaunchSet set, const Status& cause);
  // Aborts the communicators of sets that are shut, if `unused` is true of them.
  void drop_shut(const std::function<bool(LaunchSet set)>& unused);
  // Aborts all communicators.
  void abort(const Status& cause);
  // Closes all communicators side by side, so that they share a deadline. Calls `done` exactly once, later.
  void close(Done done);
  // Frees all communicators; those that are connected are aborted.
  void clear() { members_.clear(); }
  // Returns an error of the communicator of a set; ok if the set is shut.
  Status check(LaunchSet set) const;

 private:
  struct Member {
    Place place;
    std::unique_ptr<Communicator> communicator;
    Status closed{Code::kShutdown, "the collectives are not connected"};
    bool shut = false;
  };

  void connect_next(std::vector<LaunchSet> sets, Done done);
  void reply(Done done, Status status);

  Loop& loop_;
  const CommunicatorOptions options_;
  const Make make_;
  std::map<LaunchSet, Member> members_;
  std::uint64_t aborts_ = 0;  // distinguishes a late answer from a current one
  std::shared_ptr<Connections*> self_ = std::make_shared<Connections*>(this);
};

}  // namespace sirtaki::net::nccl
