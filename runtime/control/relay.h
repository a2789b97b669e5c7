// Relay: one node of the tree between ranks and coordinator. It merges equal messages of the ranks below, so that the
// coordinator receives a few messages instead of one from each rank, and it distributes the answers.
//
// The coordinator learns exactly the same as from the ranks themselves: the sender of each message, and the order of
// the messages of each rank about one subject.
//   - A first announcement waits for those of all ranks below, until none has arrived for `linger`, and at most for
//     `longest` from the first. A late rank delays other messages by no more than that.
//   - Reports of waiting wait up to `report_linger`.
//   - Errors pass at once. Repeated failures of a use or a step are dropped, because the coordinator acts on the first.
// Pure state machine: events in, actions out. Its owner (the control thread of a rank, or the simulator) sends the
// actions in order and calls on_tick() at next_tick().
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/control/bundle.h"
#include "runtime/control/tree.h"

namespace sirtaki::control {

struct RelayOptions {
  Duration linger = std::chrono::milliseconds(1);
  Duration longest = std::chrono::milliseconds(50);
  Duration report_linger = std::chrono::milliseconds(25);
  std::size_t max_bytes = std::size_t{4} << 20;  // a bundle exceeds this by one message at most
};

class Relay {
 public:
  struct Actions {
    std::vector<Bundle> up;
    std::vector<std::pair<std::size_t, Spread>> down;  // indexed by child
  };

  Relay(RankSet below, std::vector<RankSet> children, RelayOptions options = {});

  // Handles a bundle from a relay below, or from a rank below (with one item).
  void on_received(Bundle bundle, TimePoint now);
  // Handles messages from above. Messages to ranks elsewhere are ignored.
  void on_spread(const Spread& spread);
  // Stops waiting for a rank that has left or is lost.
  void on_gone(Rank rank, TimePoint now);
  // Sends all pending messages.
  void flush();
  void on_tick(TimePoint now);
  std::optional<TimePoint> next_tick() const;

  Actions take_actions() { return std::exchange(actions_, {}); }

 private:
  // The messages about a stream that were passed on and need no repetition.
  struct StreamNews {
    std::uint32_t attempts_asked = 0;    // requests for flags in earlier attempts are known, or useless
    std::uint32_t attempts_aborted = 0;  // aborts of earlier attempts are known
  };

  struct Received {
    RankSet from;
    RankSet members;  // ranks that may send it
  };

  bool is_repetition(const MemberMessage& message);
  void add(SourcedMessage item, TimePoint now);
  void delay(bool report, TimePoint now);
  bool is_complete(const Received& received) const { return received.from.contains(received.members.common(present_)); }
  bool complete() const;
  void flush_if_complete();
  void forget_answered(const CoordinatorMessage& message);

  const RankSet below_;
  const std::vector<RankSet> children_;
  const RelayOptions options_;
  RankSet present_;  // ranks of below_ that have neither left nor been lost

  std::vector<SourcedMessage> pending_;
  std::unordered_map<std::string, std::vector<std::size_t>> places_;  // subject -> places in pending_
  std::unordered_map<std::string, Received> received_;                // subject -> its senders, also before a flush
  bool urgent_ = false;
  std::optional<TimePoint> news_due_;  // deadline of the pending announcements
  std::optional<TimePoint> news_end_;  // their latest deadline
  std::optional<TimePoint> report_due_;

  std::set<std::pair<std::string, std::uint64_t>> failed_;  // the last uses whose failure was passed on
  std::deque<std::pair<std::string, std::uint64_t>> failed_order_;
  std::map<std::uint16_t, StreamNews> streams_;
  Actions actions_;
};

}  // namespace sirtaki::control
