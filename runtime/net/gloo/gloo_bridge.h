// GlooBridge: connects one blocking collective on a lane thread with the link on its loop. Free of Gloo types.
//
// Shared by: the lane that runs the collective, the backend, and the tasks between them. The lane thread calls the
// methods of the lane side, the loop those of the loop side. A lane returns only after the link has released its
// memory; detach() is the only exception.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

class GlooBridge : public std::enable_shared_from_this<GlooBridge> {
 public:
  // The transfers of one buffer in one direction, completed in the order in which they began, as Gloo requires.
  struct Transfers {
    struct Transfer {
      Rank peer = -1;
      bool done = false;
    };
    int pending = 0;
    std::deque<Transfer> begun;  // transfers that were not waited for yet
    std::uint64_t waited = 0;    // transfers that were; the number of the first in `begun`
  };

  GlooBridge(PointToPoint& link, Envelope envelope);

  // Lane side. Messages with the same peer and `stream` match in order.
  void send(Rank peer, std::uint64_t stream, ConstBytes data, std::shared_ptr<Transfers> transfers);
  void recv(Rank peer, std::uint64_t stream, Bytes out, std::shared_ptr<Transfers> transfers);
  // Returns the peer of a transfer that ended, or the error that ends all.
  Result<Rank> wait(Transfers& transfers);
  // Returns once the memory of `transfers` is free; cancels those that have not ended.
  void release(Transfers& transfers);

  // Loop side.
  void fail(const Status& cause);    // first cause wins; wakes the lane
  void detach(const Status& cause);  // like fail(), and the link is not used any more
  // Any side.
  Status failure();

 private:
  template <class Start>
  void post(std::shared_ptr<Transfers> transfers, Rank peer, Start start);
  Envelope next(std::map<std::pair<Rank, std::uint64_t>, std::uint32_t>& counters, Rank peer, std::uint64_t stream);
  void settle(Transfers& transfers, std::uint64_t number, const Status& status);

  PointToPoint& link_;
  const Envelope envelope_;
  std::map<std::pair<Rank, std::uint64_t>, std::uint32_t> sent_;      // lane side
  std::map<std::pair<Rank, std::uint64_t>, std::uint32_t> received_;  // lane side
  std::mutex mutex_;
  std::condition_variable changed_;
  Status failure_;  // guarded by mutex_, like all Transfers
  bool detached_ = false;
};

}  // namespace sirtaki::net
