// LaunchLine: carries words about the order of launches between rank 0 and the other ranks.
//
// Messages use the transport of the host at its highest priority.
// Owners: LaunchServer on rank 0, OrderedDevice elsewhere. Thread: loop, destructor included. Not for the meaning of
// words.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "runtime/net/device/launch_messages.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

class LaunchLine {
 public:
  struct Events {
    // Receives the words of a message. An error means that `peer` breaks the protocol.
    std::function<Status(Rank peer, std::span<const LaunchWord> words)> received;
    // Called once if `peer` is lost, behind all words from it that have arrived.
    std::function<void(Rank peer, const Status&)> lost;
    // A message was malformed or broke the protocol, so ranks may disagree on the order for good.
    std::function<void(const Status&)> corrupt;
  };

  // Listens to rank 0, and on rank 0 to all others. `tag` is reserved for its messages. `link` must outlive this.
  LaunchLine(PointToPoint& link, OpTag tag, Events events);
  LaunchLine(const LaunchLine&) = delete;
  LaunchLine& operator=(const LaunchLine&) = delete;
  // Drops the callbacks that are still due.
  ~LaunchLine();

  // Sends words in order. Returns the number of messages; `over` is called once for each, later, when it has left or
  // failed.
  int send(Rank peer, std::span<const LaunchWord> words, const std::function<void()>& over);

 private:
  void listen(Rank peer);
  void on_message(Rank peer, ConstBytes message);
  void on_error(Rank peer, const Status& status);
  Status protocol_error(Rank peer, const Status& why) const;

  PointToPoint& link_;
  const OpTag tag_;
  const Events events_;
  std::shared_ptr<LaunchLine*> self_ = std::make_shared<LaunchLine*>(this);
};

}  // namespace sirtaki::net
