// LaunchServer: the part of rank 0 in the agreement on one order of launches.
//
// Ranks report operations that are ready, and rank 0 tells those of the same set the order in which all launch them,
// and the groups: operations of a set that get their places at the same time form groups, within a limit of bytes.
// Process sets come into being here, too (launch_agreement.h). All decisions of one turn of the loop travel together.
// Rank 0 gets its own only after the messages to all others have left, those about other sets and of earlier turns
// included, so devices can finish their work even if the loop of rank 0 stalls in a launch.
// If ranks cannot agree any more, each of them learns that nothing gets a place any more.
// A rank that is gone, or says that it launches nothing any more, is lost: its sets get no more places, and their ranks
// learn of it behind the places that they have got.
//
// Owner: the data plane of rank 0. Thread: loop, destructor included. It needs no GPU: rank 0 has a member
// (ordered_device.h) only if it takes part in operations itself.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/net/device/launch_agreement.h"
#include "runtime/net/device/launch_line.h"
#include "runtime/net/device/launch_messages.h"
#include "runtime/net/device/launch_order.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

struct LaunchServerOptions {
  OpTag tag;  // reserved for its messages, as that of OrderedDevice
  // Limit of the bytes of a group; a larger operation is launched alone.
  std::size_t group_bytes = std::size_t{32} * 1024 * 1024;
};

class LaunchServer {
 public:
  // The member of rank 0; its functions are called from the loop, never inside take().
  struct Member {
    std::function<void(std::span<const LaunchWord>)> words;  // decisions, after all messages about them have left
    std::function<void(const Status&)> failed;               // ranks cannot agree any more
  };

  // `link` must outlive this. `broken` is called at most once, later, if ranks cannot agree any more.
  LaunchServer(PointToPoint& link, const LaunchServerOptions& options, std::function<void(const Status&)> broken);
  LaunchServer(const LaunchServer&) = delete;
  LaunchServer& operator=(const LaunchServer&) = delete;
  ~LaunchServer();

  void attach(Member member) { member_ = std::move(member); }
  void detach() { member_ = {}; }
  // Takes a word of the member of rank 0.
  void take(const LaunchWord& word);

 private:
  struct Decision {
    LaunchNotice notice;
    bool more = false;  // the next operation with a place belongs to the same group
  };
  // Words for rank 0, which it gets once the messages about the same decisions have left.
  struct Batch {
    int sending = 0;
    std::vector<LaunchWord> words;
  };

  Status apply_all(Rank from, std::span<const LaunchWord> words);
  Status apply(Rank from, const LaunchWord& word);
  // Gives no more places to sets of `rank`, and tells their ranks.
  void lose(Rank rank);
  void fail(const Status& status);
  // Says that rank 0 orders nothing any more.
  void say_over(Rank peer);
  void flush_later();
  void flush();
  std::vector<Decision> decide();
  void send(std::vector<std::vector<LaunchWord>> words);
  void pass_on_batches();

  PointToPoint& link_;
  const LaunchServerOptions options_;
  const std::function<void(const Status&)> broken_;
  Member member_;
  LaunchSequencer sequencer_;
  LaunchAgreement agreement_;
  LaunchLine line_;
  // Indexed by rank:
  std::vector<bool> speaks_;                        // has sent a word, so it listens
  std::vector<bool> gone_;                          // is lost
  std::vector<std::pair<Rank, Rank>> unsent_gone_;  // pairs of a rank to tell and one that is gone
  bool failed_ = false;
  bool flush_posted_ = false;  // a task is posted
  std::deque<std::shared_ptr<Batch>> batches_;
  std::shared_ptr<LaunchServer*> self_ = std::make_shared<LaunchServer*>(this);
};

}  // namespace sirtaki::net
