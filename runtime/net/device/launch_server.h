// LaunchServer: the part of rank 0 in the agreement on one order of launches.
//
// Ranks report operations that are ready, and rank 0 tells them the order in which all launch them, and the groups:
// operations that get their places at the same time form groups, within a limit of bytes. All decisions of one turn of
// the loop travel together. Rank 0 launches an operation only after its messages to all others have left, so the device
// can finish its work even if the loop of rank 0 stalls afterwards.
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

#include "runtime/net/device/launch_line.h"
#include "runtime/net/device/launch_messages.h"
#include "runtime/net/device/launch_order.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::net {

struct LaunchServerOptions {
  OpTag tag;  // reserved for its messages, as in OrderedOptions
  // Limit of the bytes of a group; a larger operation is launched alone.
  std::size_t group_bytes = std::size_t{32} * 1024 * 1024;
};

class LaunchServer {
 public:
  // The member of rank 0; its functions are called from the loop, never inside take().
  struct Member {
    std::function<void(std::span<const LaunchWord>)> words;  // decisions, after all messages about them have left
    std::function<void(Rank, const Status&)> lost;           // at once
    std::function<void(const Status&)> failed;               // ranks cannot agree any more
  };

  // `link` must outlive this.
  LaunchServer(PointToPoint& link, const LaunchServerOptions& options);
  LaunchServer(const LaunchServer&) = delete;
  LaunchServer& operator=(const LaunchServer&) = delete;
  ~LaunchServer();

  void attach(Member member) { member_ = std::move(member); }
  void detach() { member_ = {}; }
  // Takes a word of the member of rank 0.
  Status take(const LaunchWord& word);
  // Returns whether an operation has a place that rank 0's member does not know yet.
  bool has_placed(OpTag tag) const;
  // Makes no more decisions: the member of rank 0 launches nothing any more.
  void stop() { stopped_ = true; }

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

  Status apply(Rank from, const LaunchWord& word);
  void on_lost(Rank peer, const Status& status);
  void fail(const Status& status);
  void flush_later();
  void flush();
  std::vector<Decision> decide();
  void pass_on_batches();

  PointToPoint& link_;
  const LaunchServerOptions options_;
  Member member_;
  LaunchSequencer sequencer_;
  LaunchLine line_;
  std::vector<bool> gone_;  // indexed by rank
  std::optional<Rank> unsent_gone_;
  bool stopped_ = false;
  bool flush_posted_ = false;  // a task is posted
  std::deque<std::shared_ptr<Batch>> batches_;
  std::shared_ptr<LaunchServer*> self_ = std::make_shared<LaunchServer*>(this);
};

}  // namespace sirtaki::net
