// GlooBridge: one collective's way from a lane thread, which blocks, to the link on its loop. Knows no Gloo type.
//
// Shared by: the lane that runs the collective, the backend, and the tasks between them. Methods of the lane side are
// for the lane's thread, those of the loop side for the loop's.
// Rule: a lane never returns before the link has let go of its memory; detach() is the only other way out.
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
  // The transfers of one buffer in one direction, told in the order they were begun: Gloo counts on it.
  struct Transfers {
    struct Transfer {
      Rank peer = -1;
      bool done = false;
    };
    int pending = 0;
    std::deque<Transfer> begun;  // not waited for yet
    std::uint64_t told = 0;      // waited for; the number of the first of `begun`
  };

  GlooBridge(PointToPoint& link, Envelope envelope);

  // Lane side. Messages with the same peer and `stream` match in order.
  void send(Rank peer, std::uint64_t stream, ConstBytes data, std::shared_ptr<Transfers> transfers);
  void recv(Rank peer, std::uint64_t stream, Bytes out, std::shared_ptr<Transfers> transfers);
  // The peer of a transfer that ended, or why there will be none.
  Result<Rank> wait(Transfers& transfers);
  // Returns when the memory of `transfers` is free; cancels them when they are not through.
  void release(Transfers& transfers);

  // Loop side.
  void fail(const Status& cause);    // first cause wins; wakes the lane
  void detach(const Status& cause);  // as fail(); the link is not touched any more
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
